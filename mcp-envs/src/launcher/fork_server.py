"""Runs an unchanged Python script many times without importing its modules many times.

Started as `python [flags] -c <this text> <script> <options>`, with one end of a Unix socket as standard input; options are
JSON: {"preload": [module…], "episode_variables": [name…]}. It imports what the script imports, then forks once per request.
A request is a 4-byte big-endian length that carries three file descriptors (standard input, output, error), then JSON:
{"id", "argv", "env", "cwd"}. Answers are JSON lines: {"ready", "modules", "seconds"} once, then {"id", "pid"} or
{"id", "failed"}, and {"id", "code"} or {"id", "signal"} at its end. When the socket closes, every child's process group is
killed and the server exits.

A module is imported here only if that can't be told from importing it in the script: not if it lies beside the script,
starts a thread, or reads a variable that differs from episode to episode. Each is tried in a forked scout first. Modules
that a script imports late are learnt from the first runs.
"""

import ast
import atexit
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import sys
import threading
import time


def imported_modules(script):
    """The modules that `script` imports when it starts: at its top level, not inside its functions."""
    with open(script, "rb") as file:
        pending = list(ast.parse(file.read(), script).body)
    names = []
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.excepthandler))]
        elif isinstance(node, ast.ExceptHandler):
            pending += node.body
    return names


def is_beside(name, directory):
    """True for a module that lies beside the script: it may read the environment of its episode when it is imported."""
    top = os.path.join(directory, name.partition(".")[0])
    return os.path.exists(top + ".py") or os.path.isdir(top)


def import_harmless(names, episode_variables):
    """Imports those of `names` that can be imported without a trace but the module itself; returns them."""
    loaded = []
    while names:
        n_harmless = scout(names, episode_variables)
        for name in names[:n_harmless]:
            importlib.import_module(name)
            loaded.append(name)
        # The one after them is left to the script; what imports it in turn will be found out as well.
        names = names[n_harmless + 1 :]
    gc.collect()
    gc.freeze()  # so that the collector's bookkeeping does not make each child copy all objects
    return loaded


def scout(names, episode_variables):
    """Imports `names` in a fork until one fails or leaves a trace; returns how many came before it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        read_variables = watch_environment()
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException:
                break
            if n_threads() > 1 or read_variables & episode_variables:
                break
            os.write(writer, b".")
        os._exit(0)
    os.close(writer)
    harmless = b""
    while part := os.read(reader, 4096):
        harmless += part
    os.close(reader)
    os.waitpid(pid, 0)
    return len(harmless)


def n_threads():
    """Threads of this process, also those that Python does not know of where the system tells."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def watch_environment():
    """The set that from now on collects the names of the environment variables that are read."""
    names = set()
    environment = type(os.environ)
    plain = environment.__getitem__

    def getitem(self, name):
        names.add(name)
        return plain(self, name)

    environment.__getitem__ = getitem
    return names


def become_agent(request, descriptors, server_ends):
    """In the child: own process group, descriptors, directory and environment, and none of the server's."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in server_ends:
        end.close()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv[:] = request["argv"]


def run_script(script, late_modules):
    """Runs the script as `python script` would, and ends the process; never returns."""
    code = 0
    known = set(sys.modules)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename != script:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback or error.__traceback__), error.__traceback__)
        code = 1
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 1
    late = "\n".join(name for name in list(sys.modules) if name not in known) + "\n"
    if 1 < len(late) <= select.PIPE_BUF:  # what fits is written whole, however many children write
        try:
            os.write(late_modules, late.encode())
        except BlockingIOError:
            pass  # others have filled the pipe; the server learns these names from them or from a later episode
    # Not the interpreter's own end: taking down the preloaded modules one by one would cost what forking has saved.
    os._exit(code & 0xFF)


def receive_exactly(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def receive_request(connection):
    header, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    if len(header) < 4:
        raise EOFError
    return json.loads(receive_exactly(connection, int.from_bytes(header, "big"))), descriptors


def reap(children, send):
    """Reports every child that has ended, after killing what it left in its process group."""
    while children:
        # Looking without taking it away keeps the number ours, so that no other process can be hit.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        kill_group(ended.si_pid)
        _, status = os.waitpid(ended.si_pid, 0)
        request_id = children.pop(ended.si_pid, None)
        if request_id is not None:
            code = os.waitstatus_to_exitcode(status)
            send({"id": request_id, "code": code} if code >= 0 else {"id": request_id, "signal": -code})


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def serve(script, options):
    """Imports, and answers requests until the socket closes. In a forked child it returns what the child shall become."""
    # The protocol leaves descriptors 0 to 2, so that nothing that is imported can read or write it.
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)

    def send(message):
        connection.sendall(json.dumps(message).encode() + b"\n")

    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(script)
    started = time.monotonic()
    episode_variables = set(options["episode_variables"])

    def importable(names):
        return [name for name in dict.fromkeys(names) if name not in sys.modules and not is_beside(name, os.path.dirname(script))]

    try:
        modules = import_harmless(importable([*imported_modules(script), *options["preload"]]), episode_variables)
    except (OSError, SyntaxError) as error:
        return send({"failed": f"{script}: {error}"})
    missing = [name for name in options["preload"] if name not in sys.modules]
    if missing:
        return send({"failed": f"cannot preload {', '.join(missing)}: not importable, or not without a trace"})

    wake_reader, wake_writer = socket.socketpair()
    late_reader, late_writer = os.pipe()
    for end in (wake_reader, wake_writer):
        end.setblocking(False)
    os.set_blocking(late_reader, False)
    os.set_blocking(late_writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    selector = selectors.DefaultSelector()
    for end in (connection, wake_reader, late_reader):
        selector.register(end, selectors.EVENT_READ)
    tried = set()
    children = {}
    send({"ready": True, "modules": modules, "seconds": round(time.monotonic() - started, 3)})
    try:
        while True:
            for key, _ in selector.select():
                if key.fileobj is wake_reader:
                    wake_reader.recv(4096)
                    reap(children, send)
                    continue
                if key.fileobj == late_reader:
                    late = [name for name in importable(os.read(late_reader, 65536).decode().split()) if name not in tried]
                    tried.update(late)
                    import_harmless(late, episode_variables)
                    reap(children, send)
                    continue
                request, descriptors = receive_request(connection)
                try:
                    pid = os.fork()
                except OSError as error:
                    pid = None
                    send({"id": request["id"], "failed": f"fork: {error}"})
                if pid == 0:
                    os.close(late_reader)
                    return request, descriptors, (selector, connection, wake_reader, wake_writer), late_writer
                for descriptor in descriptors:
                    os.close(descriptor)
                if pid is None:
                    continue
                try:
                    os.setpgid(pid, pid)  # here too: whichever process comes first, the group exists before it is named
                except (PermissionError, ProcessLookupError):
                    pass
                children[pid] = request["id"]
                send({"id": request["id"], "pid": pid})
    except (EOFError, ConnectionError):
        pass
    for pid in children:
        kill_group(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return None


child = serve(sys.argv[1], json.loads(sys.argv[2]))
if child is not None:
    *agent, late_modules = child
    try:
        become_agent(*agent)
    except BaseException as error:
        os.write(2, f"cannot become the agent: {error}\n".encode())
        os._exit(126)
    run_script(sys.argv[0], late_modules)
