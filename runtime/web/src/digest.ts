/** SHA-256 of bytes, by SubtleCrypto where the page may use it. */

/** Return the SHA-256 of bytes as hexadecimal digits. */
export async function sha256(data: Uint8Array<ArrayBuffer>): Promise<string> {
  const subtle = globalThis.crypto?.subtle as SubtleCrypto | undefined;
  const digest = subtle
    ? new Uint8Array(await subtle.digest("SHA-256", data))
    : (await import("./plain_digest.js")).plainSha256(data);
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the SHA-256 of a text's UTF-8. */
export async function textSha256(text: string): Promise<string> {
  return sha256(new TextEncoder().encode(text));
}
