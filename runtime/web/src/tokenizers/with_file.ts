/** Tokenizers that a file of the bundle describes. */

import { huggingFace, sentencePiece, type Libraries } from "./libraries.js";
import type { Tokenizer } from "./tokenizer.js";
import { Vocabulary } from "./vocabulary.js";
import { VocabularyTokenizer } from "./vocabulary_tokenizer.js";

/** Return the tokenizer of a file's content; `place` is its place, for messages. */
export async function fileTokenizer(
  kind: "vocabulary" | "tokenizers" | "sentencepiece",
  raw: Uint8Array,
  place: string,
  libraries: Libraries,
): Promise<Tokenizer> {
  if (kind === "vocabulary") return new VocabularyTokenizer(Vocabulary.fromJson(raw, place));
  if (kind === "tokenizers") return huggingFace(raw, place, libraries.tokenizers);
  return sentencePiece(raw, place, libraries.sentencepiece);
}
