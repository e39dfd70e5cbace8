"""Pickles that attack their reader: they run code, perhaps in disguise, take memory, or never end.

Scanners of pickles publish calls and disguises as advisories, from whose descriptions these files are made.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FAR = 1 << 62


def text(characters: str) -> bytes:
    """Return the operations that push a text only."""
    data = characters.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def value(plain_value: Any) -> bytes:
    """Return the operations that push a plain value."""
    return pickle.dumps(plain_value, protocol=2)[2:-1]


def call(module: str, name: str, arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n".encode() + b"(" + arguments + b"tR"


def plain(body: bytes) -> bytes:
    """Return a pickle of some operations."""
    return b"\x80\x02" + body + b"."


# Functions that run code, start a program, read or write a file, open a connection, or lead to such functions.
GADGETS = """
    os.system os.popen os.execv os.posix_spawn os.fork os.kill os.remove os.symlink posix.system nt.system
    builtins.eval builtins.exec builtins.compile builtins.getattr builtins.setattr builtins.__import__
    builtins.open builtins.input builtins.breakpoint builtins.globals builtins.map builtins.apply
    __builtin__.execfile __builtin__.file __builtin__.reload commands.getoutput popen2.popen2
    subprocess.Popen subprocess.run subprocess.check_output subprocess.getoutput pty.spawn platform.popen
    runpy._run_code runpy.run_path runpy.run_module code.interact code.InteractiveInterpreter.runcode
    codeop.compile_command bdb.Bdb.run pdb.run pdb.Pdb.runeval doctest.debug_script trace.Trace.run
    timeit.timeit timeit.main cProfile.run cProfile.runctx profile.run profile.Profile.runctx
    pydoc.locate pydoc.pipepager pkgutil.resolve_name importlib.import_module importlib.reload
    importlib.machinery.SourceFileLoader zipimport.zipimporter zipimport.zipimporter.load_module
    imp.load_source operator.attrgetter operator.itemgetter operator.methodcaller _operator.attrgetter
    functools.partial functools.reduce _functools.partial itertools.starmap types.CodeType
    types.FunctionType typing.get_type_hints inspect.getattr_static marshal.loads marshal.load
    ctypes.CDLL ctypes.cdll.LoadLibrary ctypes.CFUNCTYPE _ctypes.dlopen cffi.FFI gc.get_objects
    pickle.loads pickle.load pickle.Unpickler _pickle.loads shelve.open dill.loads cloudpickle.loads
    joblib.load pandas.read_pickle pandas.eval numpy.load numpy.fromfile numpy.memmap numpy.save
    numpy.testing._private.utils.runstring numpy.f2py.crackfortran._eval_length numpy.__builtins__
    numpy.f2py.crackfortran.getlincoef numpy.f2py.diagnose.run_command numpy.distutils.exec_command
    torch.load torch.serialization.load torch.hub.load torch.hub._load_local torch.jit.load torch.compile
    torch.storage._load_from_bytes torch.utils.cpp_extension.load torch.utils.cpp_extension.load_inline
    torch.utils.collect_env.run torch.utils.bottleneck.__main__.run_cprofile torch.ops.load_library
    torch.utils._config_module.ConfigModule.load_config torch._inductor.codecache.compile_file
    torch._dynamo.guards.GuardBuilder.get torch.fx.graph_module._forward_from_src torch.os.system
    torch.package.PackageImporter torch.distributed.rpc.rpc_sync torch.utils.data.DataLoader
    torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression torch.classes.load_library
    pip.main pip._internal.main pip._internal.cli.main.main ensurepip._run_pip venv.create
    setuptools.setup distutils.file_util.write_file distutils.spawn.spawn lib2to3.pgen2.grammar.Grammar.loads
    idlelib.run.Executive.runcode idlelib.pyshell.ModifiedInterpreter.runcommand webbrowser.open
    asyncio.create_subprocess_shell asyncio.unix_events._UnixSubprocessTransport._start asyncio.run
    multiprocessing.Process multiprocessing.util.spawnv_passfds concurrent.futures.ProcessPoolExecutor
    threading.Thread signal.signal atexit.register sys.settrace sys.modules sys.exit faulthandler._sigsegv
    _interpreters.run_string _xxsubinterpreters.run_string _posixsubprocess.fork_exec _io.FileIO io.open
    shutil.rmtree shutil.copyfile tempfile.mktemp pathlib.Path.write_text pathlib.Path.unlink linecache.getlines
    socket.create_connection ssl.get_server_certificate http.client.HTTPConnection urllib.request.urlopen
    requests.get requests.api.get aiohttp.ClientSession httplib.HTTPSConnection smtplib.SMTP ftplib.FTP
    imaplib.IMAP4_stream telnetlib.Telnet xmlrpc.client.ServerProxy logging.config.listen
    sqlite3.connect sqlite3.dbapi2.enable_callback_tracebacks uuid._get_command_stdout cgitb.enable
    _aix_support._read_cmd_output _osx_support._read_output _pyrepl.pager.pipe_pager site.execsitecustomize
    test.support.script_helper.assert_python_ok unittest.mock._importer turtle.config_dict tkinter.Tcl
    copyreg.add_extension copyreg.__newobj__ _codecs.lookup codecs.open weakref.finalize
    """.split()  # noqa: SIM905 -- a table


def forms(gadget: str, canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield pickles that call a gadget by each operation that calls, or only refer to it."""
    module, _, name = gadget.rpartition(".")
    where, found = text(str(canary)), f"c{module}\n{name}\n".encode()
    split = text(module) + text(name) + b"\x93"
    first, _, dotted = gadget.partition(".")
    yield "reduce", plain(found + where + b"\x85R")
    yield "reduce by a name from the stack", b"\x80\x04" + split + where + b"\x85R."
    yield "reduce by a dotted name", b"\x80\x04" + text(first) + text(dotted) + b"\x93" + where + b"\x85R."
    yield "inst", plain(b"(" + where + f"i{module}\n{name}\n".encode())
    yield "obj", plain(b"(" + found + where + b"o")
    yield "newobj", plain(found + where + b"\x85\x81")
    yield "newobj_ex", b"\x80\x04" + split + where + b"\x85}\x92."
    yield "name alone", plain(found)
    yield "name that is dropped", plain(found + b"0N")
    yield "value of a state", plain(b"cargparse\nNamespace\n)\x81}" + text("a") + found + b"sb")
    yield "default of a dict", plain(call("collections", "defaultdict", found))
    yield "text, protocol 0", found + f"(S{str(canary)!r}\ntR.".encode()


def disguised(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield pickles that hide a call from scanners: by the memo, by damage, by trailing data, in known classes."""
    where = text(str(canary))
    bad = plain(call("os", "mkdir", where))
    parts = text("mkdir") + b"\x94" + text("os") + b"\x94" + text("path") + b"\x940" + b"00"
    yield "name by places of the memo", b"\x80\x04" + parts + b"h\x01h\x00\x93" + where + b"\x85R."
    swapped = text("os") + b"q\x05" + text("collections") + b"q\x06" + text("mkdir") + b"q\x06000"
    yield "place of the memo that is taken again", b"\x80\x04" + swapped + b"h\x05h\x06\x93" + where + b"\x85R."
    joined = call("builtins", "getattr", text("") + text("join")) + b"](" + text("o") + text("s") + b"e\x85R"
    yield "name that is put together", b"\x80\x04" + joined + text("mkdir") + b"\x93" + where + b"\x85R."
    yield "name as bytes", b"\x80\x04C\x02osC\x05mkdir\x93" + where + b"\x85R."
    yield "name of another alphabet", b"\x80\x04" + text("ｏs") + text("mkdir") + b"\x93" + where + b"\x85R."
    yield "builtins of numpy", plain(b"cbuiltins\ndict.get\ncnumpy\n__builtins__\n" + text("exec") + b"\x86R")
    slots = b"N}" + text("a") + text("os") + b"s\x86b"
    yield "attributes of a function", plain(b"cnumpy\nprod\n" + slots)
    yield "attributes of a known class", plain(b"ctorch.nn\nLinear\n" + slots)
    yield (
        "registered setter",
        plain(b"cargparse\nNamespace\n)\x81}" + text("__setstate__") + b"cos\nmkdir\nsb" + where + b"b"),
    )
    yield "call before what is damaged", bad[:-1] + b"\xff\xff."
    yield "call before the end that is missing", bad[:-1]
    yield "call before a wrong frame", b"\x80\x04" + bad[2:-1] + b"\x95" + b"\xff" * 8 + b"N."
    yield "call before a tuple of nothing", bad[:-1] + b"0\x87."
    yield "second pickle", plain(b"}") + bad
    yield "second pickle without a protocol", b"N." + bad[2:]
    yield (
        "reduce in the arguments of a known class",
        plain(call("collections", "OrderedDict", call("os", "mkdir", where))),
    )
    yield "reduce in state", plain(b"cargparse\nNamespace\n)\x81}" + text("a") + call("os", "mkdir", where) + b"sb")
    yield "reduce that is dropped", plain(call("os", "mkdir", where) + b"0N")
    yield (
        "factory of a known class",
        plain(call("collections", "defaultdict", b"cos\nmkdir\n")),
    )
    yield "builtins of a known module", plain(call("torch.nn.modules.linear", "__builtins__", b"") + text("eval"))
    yield "import of a known module", b"\x80\x04" + text("torch.nn.modules.linear") + text("torch.os.mkdir") + b"\x93."
    yield "attribute of a known class", b"\x80\x04" + text("torch.nn") + text("Linear.__init__.__globals__") + b"\x93."
    yield "attribute of a class known by its name", b"\x80\x04" + text("os") + text("Vocab.system") + b"\x93."
    yield "name with a line's end", b"\x80\x04" + text("os\nsystem\x1b[2J") + text("\r\nok") + b"\x93."


def reaching(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield pickles that refer to objects outside of them, or to attributes that change an object's class."""
    where = text(str(canary))
    yield "extension 1", plain(b"\x82\x01")
    yield "extension 2", plain(b"\x83\x01\x01")
    yield "extension 4", plain(b"\x84\x01\x00\x00\x00")
    yield "persistent id as a line", plain(b"Pos.mkdir\n")
    yield "persistent id", plain(b"(" + text("storage") + b"cos\nmkdir\n" + where + b"tQ")
    yield "persistent id of a class", plain(b"(" + text("module") + b"cos\nmkdir\n" + where + text("exit()") + b"tQ")
    yield "persistent id of a number", plain(b"K\x01Q")
    yield "buffer outside", b"\x80\x05\x97\x98."
    for name in ("__class__", "__dict__", "__setstate__", "__reduce__"):
        state = b"}" + text(name) + b"cargparse\nNamespace\nsb"
        yield f"state with {name}", plain(b"cargparse\nNamespace\n)\x81" + state)
    yield "state for a class", plain(b"cargparse\nNamespace\n}" + text("a") + b"K\x01sb")
    yield "state for a list", plain(b"]}" + text("a") + b"K\x01sb")
    yield "call of a value", plain(b"K\x01)R")
    yield "call of an object", plain(b"cargparse\nNamespace\n)R)R")
    yield "call without a tuple", plain(b"cargparse\nNamespace\nK\x01R")


def damaged() -> Iterator[tuple[str, bytes]]:
    """Yield pickles with wrong lengths, or that no pickler writes."""
    yield "text of 2**62 bytes", b"\x80\x04\x8d" + struct.pack("<Q", FAR) + b"abc."
    yield "text of 2**64 - 1 bytes", b"\x80\x04\x8d" + b"\xff" * 8 + b"abc."
    yield "text of 4 GB", plain(b"X\xff\xff\xff\xffabc")
    yield "bytes of 2**62", b"\x80\x04\x8e" + struct.pack("<Q", FAR) + b"abc."
    yield "bytes of 4 GB", b"\x80\x03B\xff\xff\xff\xffabc."
    yield "bytearray of 2**62", b"\x80\x05\x96" + struct.pack("<Q", FAR) + b"abc."
    yield "old text of 2 GB", plain(b"T\xff\xff\xff\x7fabc")
    yield "old text of -1", plain(b"T\xff\xff\xff\xffabc")
    yield "whole number of 2 GB", plain(b"\x8b\xff\xff\xff\x7fabc")
    yield "whole number of 100,000 bytes", plain(b"\x8b\xa0\x86\x01\x00" + b"\1" * 100_000)
    yield "whole number of 4,000 digits", b"I" + b"9" * 4000 + b"\n."
    yield "whole number of 100,000 digits", b"I" + b"9" * 100_000 + b"\n."
    yield "frame of 2**60 bytes", b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N."
    yield "line without end", b"c" + b"a" * 100_000
    yield "memo far out", plain(b"Nr\xff\xff\xff\xff0j\xfe\xff\xff\xff")
    yield "memo below zero", b"Np-1\n0g-2\n."
    yield "memo from its end", b"\x80\x04N\x940g-1\n."
    yield "memo that is empty", plain(b"h\x05")
    yield "nothing to give back", plain(b"")
    yield "no end", b"\x80\x02N"
    yield "no mark", plain(b"Nt")
    yield "too few for a tuple", plain(b"N\x87")
    yield "marks only", plain(b"((((e")
    yield "append to a dict", plain(b"}Na")
    yield "append to nothing", plain(b"Na")
    yield "item of a list", plain(b"]NNs")
    yield "key without value", plain(b"}(Nu")
    yield "element of a list", b"\x80\x04](N\x90."
    yield "list as key", plain(b"}]Ns")
    yield "object as key", plain(b"}cargparse\nNamespace\n)RNs")
    yield "text that is not UTF-8", plain(b"X\x02\x00\x00\x00\xff\xff")
    yield "old text without quotes", b"Sabc\n."
    yield "name that is not a text", b"\x80\x04NN\x93."
    yield "dict of items that are not pairs", plain(call("collections", "OrderedDict", b"K\x07"))
    yield "dict of triples", plain(call("collections", "OrderedDict", b"(K\x01K\x02K\x03\x87l"))
    yield "set of lists", plain(call("builtins", "set", b"(]l"))
    yield "bytes of a number", plain(call("builtins", "bytearray", value(1 << 40)))
    yield "encoding that is a codec", plain(call("_codecs", "encode", text("a") + text("zlib_codec")))
    yield "object of no class", plain(call("copy_reg", "_reconstructor", b"K\x01K\x02N"))
    yield "unknown operation", plain(b"\xff")


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield pickles that expand to far more than their size, or that take for ever."""
    namespace = b"cargparse\nNamespace\nq\x00"
    yield "empty sets", b"\x80\x04" + b"\x8f" * 1_000_000 + b"."
    yield "empty dicts", b"\x80\x04" + b"}" * 800_000 + b"."
    yield "records", plain(b"(" + namespace + b"h\x00)\x81" * 200_000 + b"l")
    yield (
        "numbers as keys",
        plain(b"}(" + b"".join(b"J" + i.to_bytes(4, "little") + b"N" for i in range(800_000)) + b"u"),
    )
    yield (
        "sets of one list",
        plain(b"(" + b"K\x01" * 1000 + b"l\x85q\x01c__builtin__\nset\nq\x00(" + b"h\x00h\x01R" * 50_000 + b"l"),
    )
    table = b"}(" + b"".join(b"M" + struct.pack("<H", key) + b"N" for key in range(2000)) + b"u"
    made = b"\x85q\x01c__builtin__\nset\nq\x00("
    yield "sets of one dict", plain(table + made + b"h\x00h\x01R" * 50_000 + b"l")
    yield (
        "bytes of one text",
        plain(
            b"("
            + text("a" * 1000_000)
            + text("latin1")
            + b"tq\x01c_codecs\nencode\nq\x00("
            + b"h\x00h\x01R" * 1000
            + b"l"
        ),
    )
    numbers = b"(" + b"K\x01" * 100_000
    yield (
        "arguments of one tuple",
        b"\x80\x04" + namespace + b"0" + numbers + b"tq\x01}K\x01Nsq\x02(" + (b"h\x00h\x01h\x02\x92" * 20_000) + b"l.",
    )
    table = b"}(" + b"".join(b"J" + number.to_bytes(4, "little") + b"N" for number in range(100_000)) + b"uq\x01"
    yield "state of one table", plain(table + b"0" + namespace + b")\x81" + b"h\x01b" * 100_000)
    yield "texts of four bytes a character", plain(b"(" + text("\U0001f600" + "a" * 900_000) * 60 + b"l")
    yield "memo in no order", plain(b"N" + b"".join(b"r" + (2 * i + 5).to_bytes(4, "little") for i in range(1_000_000)))
    yield "ten thousand unknown names", plain(b"(" + b"".join(b"cm%d\nf\n" % i for i in range(10_000)) + b"l")
    long = text("a" * 1_000_000)
    yield "long keys that are looked up", plain(long + b"q\x000" + long + b"q\x010}h\x00Ns" + b"h\x01Ns" * 1_000_000)
    yield "deep lists", plain(b"]" * 200_000 + b"a" * 199_999)
    yield "deep tuples", plain(b")" + b"\x85" * 200_000)
    yield "deep tuple as key", plain(b"}(" + text("a") + b"\x85" * 100_000 + b"Nu")
    yield "deep dicts", plain(b"}" + b"K\x01}" * 200_000 + b"s" * 200_000)
    yield "deep state", plain(namespace + b"0" + b"h\x00)\x81" * 50_000 + b"b" * 49_999)
    parts = b"]q\x00"
    for part in range(1, 20):  # none is deep where it is reached first
        parts += b"h" + bytes([part - 1]) + b"\x85" * 20 + b"q" + bytes([part])
    yield "deep in parts", plain(b"(" + parts + b"t")
    yield "list in itself", plain(b"]q\x00h\x00a")
    yield "object in its own state", plain(namespace + b")\x81q\x01}" + text("a") + b"h\x01sb")
    laughs = b"]q\x00(" + b"K\x01" * 10 + b"e"
    for index in range(20):
        laughs += b"]q" + bytes([index + 1]) + b"(" + (b"h" + bytes([index])) * 10 + b"e"
    yield "a billion laughs", plain(laughs)
    colliding = [value(k * ((1 << 61) - 1)) for k in range(1, 60_000)]
    yield "keys of one hash", plain(b"}(" + b"N".join(colliding) + b"Nu")
    pairs = b"".join(b"](" + key + b"Ne" for key in colliding)
    yield "keys of one hash in pairs", plain(call("collections", "OrderedDict", b"(" + pairs + b"l"))
    yield "numbers of one hash in a set", b"\x80\x04\x8f(" + b"".join(colliding) + b"\x90."
    yield "numbers of one hash in a frozenset", b"\x80\x04(" + b"".join(colliding) + b"\x91."
    yield "numbers of one hash in a list for a set", plain(call("builtins", "set", b"(" + b"".join(colliding) + b"l"))
