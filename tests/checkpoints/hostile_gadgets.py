"""Calls in hostile pickles, and their disguises against programs that look for names or refuse odd archives.

Scanners of pickles publish such cases as advisories. The files here are made from the advisories' descriptions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tests.checkpoints.hostile_pickles import call, plain, text
from tests.checkpoints.hostile_torch_files import MAGIC, Entry, archive, tensor, zipped

__all__ = ["GADGETS", "disguised", "forms"]

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
    """Yield files that hide a call from scanners: by the memo, by damage, by trailing data, by the container."""
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
    magic = plain(b"\x8a\x0a" + MAGIC.to_bytes(10, "little"))
    yield "pickle behind the magic number", magic + bad
    yield (
        "pickle in place of the keys",
        magic + plain(b"M\xe9\x03") + plain(b"}" + text("little_endian") + b"\x88s") + plain(b"}") + bad,
    )
    for name in ("evil.pkl", "DATA.PKL", "data.pkl/x", "data.pickle"):
        yield f"archive with {name}", zipped([Entry(f"archive/{name}", bad), Entry("archive/version", b"3\n")])
    yield "archive with another pickle", archive(tensor(), Entry("archive/code.pkl", bad, crc=1))
    for flags in (0x01, 0x21, 0x41, 0x2001):
        yield f"archive with flags {flags:#x}", zipped([Entry("archive/data.pkl", bad, flags=flags)])
    yield "archive with a wrong checksum", zipped([Entry("archive/data.pkl", bad, crc=1)])
    yield "archive with another local name", zipped([Entry("archive/data.pkl", bad, local_name=b"archive/data.pkI")])
    yield (
        "archive of one pickle twice",
        zipped([Entry("archive/data.pkl", plain(b"}")), Entry("archive/data.pkl", bad)]),
    )
    yield "archive of two folders", zipped([Entry("archive/data.pkl", plain(b"}")), Entry("b/data.pkl", bad)])
    yield "archive behind a pickle", plain(b"}") + archive(call("os", "mkdir", where))
    yield "archive before a pickle", archive(tensor()) + bad
    yield "7z", b"7z\xbc\xaf\x27\x1c\x00\x04" + struct.pack("<LQQL", 0, len(bad), 0, 0) + bad
    yield "gzip", b"\x1f\x8b\x08\x00" + bad
    yield "tar", b"archive/data.pkl".ljust(257, b"\0") + b"ustar\x0000" + bad.rjust(512, b"\0")
    yield "numpy's file", b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n" + bad
