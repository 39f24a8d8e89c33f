"""Flower's deployment on this machine: the example app as it is, and with its private patch.

Starts a SuperLink and SuperNodes with TLS and node authentication, runs the app by FedAvg, then by
private Δ-FL, and prints the seconds of each round. With --kill, it kills a SuperNode while the
second private round is under way. With --signed, nodes have identities that their SuperNodes' keys
have signed, and take part in signed sessions.
With --secagg, federated averaging by secure aggregation takes the place of private Δ-FL.
With --simulation, both run in Flower's simulation instead, which runs at most four nodes more than
there are CPUs. Needs the extra `flower`, and for the simulation flwr[simulation].

    python tests/net/flower_federation.py --nodes 12 --kill
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deltafl.sim.net.certificates import make_certificate

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "flower"
ROUND = re.compile(r"\[ROUND (\d+)/")
STRATEGIES = {  # of each patch
    "private": 'PrivateDeltaFL(theta="1/2")',
    "secure-aggregation": "PrivateDeltaFL(theta=1)",
}
MOD = "DeltaFLMod(own_loss)"
USUAL_FEWEST = 10
OVER_TLS = (
    'listening=Listening(tls=Tls(Path("{0}/server.pem"), Path("{0}/server.key")), '
    'authority=Path("{0}/ca.pem"))'
)
SIGNED = (
    'settings={{"privacy": {{"adversary": "active"}}}}, '
    'enrolled=Enrolled(Path("{0}/devices.txt"), Path("{0}/supernodes.txt")), '
    "run_config=context.run_config"
)


def changed_lines(patch):
    """Lines that the patch adds, of the app's Python files; what it removes besides."""
    lines = [line for line in patch.splitlines() if not line.startswith(("+++", "---"))]
    added = [line for line in lines if line.startswith("+") and line[1:].strip()]
    removed = [line for line in lines if line.startswith("-") and line[1:].strip()]
    return len(added), len(removed)


def make_apps(work, options):
    """Both apps, and what the patch changes."""
    name = "secure-aggregation" if options.secagg else "private"
    plain, private = work / "plain", work / name
    shutil.copytree(EXAMPLE / "app", plain)
    shutil.copytree(EXAMPLE / "app", private)
    patch, strategy = EXAMPLE / f"{name}.patch", STRATEGIES[name]
    subprocess.run(["patch", "-p1", "-s", "-i", str(patch)], cwd=private, check=True)
    asked = {
        OVER_TLS.format(work): options.trips_over_tls,
        SIGNED.format(work): options.signed,
    }
    if any(asked.values()):
        server = private / "digits" / "server_app.py"
        text = server.read_text()
        assert strategy in text, "the patch does not use the strategy as expected"
        names = "Enrolled, Listening, PrivateDeltaFL, Tls"
        text = text.replace("import PrivateDeltaFL", f"import {names}")
        more = ", ".join([strategy[:-1], *[one for one, is_wanted in asked.items() if is_wanted]])
        server.write_text("from pathlib import Path\n" + text.replace(strategy, more + ")"))
    return plain, private, changed_lines(patch.read_text())


def accept_fewer(app, fewest):
    """Have server and nodes agree to rounds of fewer devices than the ten of the default."""
    server, client = app / "digits" / "server_app.py", app / "digits" / "client_app.py"
    settings = f'PrivateDeltaFL(settings={{"privacy": {{"min_cohort": {fewest}}}}}, theta='
    server.write_text(server.read_text().replace("PrivateDeltaFL(theta=", settings))
    text = client.read_text()
    assert MOD in text, "the patch does not use the mod as expected"
    policy = f"RoundPolicy(min_cohort={fewest})"
    text = text.replace(MOD, f"DeltaFLMod(own_loss, {policy})")
    client.write_text("from deltafl.protocol.policy import RoundPolicy\n" + text)


def write_certificates(work):
    made = make_certificate(["127.0.0.1", "localhost"])
    for name, data in (
        ("ca.pem", made.certificate),
        ("server.pem", made.certificate),
        ("server.key", made.key),
    ):
        (work / name).write_bytes(data)


def make_key(path):
    """A SuperNode's key, and its public part beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    public = path.with_suffix(".pub")
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return public


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def started(stack, work, name, command, env):
    log = stack.enter_context((work / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        command, stdout=log, stderr=log, env=env, cwd=work, start_new_session=True
    )
    stack.callback(end, process)
    return process


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until(found, seconds, what):
    limit = time.monotonic() + seconds
    while not found():
        if time.monotonic() > limit:
            sys.exit(f"waited {seconds} s in vain for {what}")
        time.sleep(0.2)


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def enrol(work, nodes):
    """Make identities that SuperNodes' keys sign for, by the command; the two lists."""
    lists = {"devices.txt": [], "supernodes.txt": []}
    for i in range(nodes):
        command = [str(Path(sys.executable).parent / "deltafl"), "enrol", str(i)]
        command += ["--out", f"device-{i}.identity", "--supernode-key", f"node-{i}.key"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=True)
        found = [line.strip() for line in done.stdout.splitlines()]
        lists["devices.txt"] += [f for f in found if re.fullmatch(rf"{i} [0-9a-f]{{64}}", f)]
        lists["supernodes.txt"] += [f for f in found if f.startswith(f"{i} ecdsa-")]
    for name, lines in lists.items():
        (work / name).write_text("\n".join(lines) + "\n")


def deployment(stack, work, nodes, env, *, signed):
    """Start a SuperLink and SuperNodes; the federation's name, and the processes."""
    port = free_port()
    link = ["flower-superlink", "--disable-runtime-dependency-installation"]
    link += ["--host", "127.0.0.1", "--port", str(port)]
    link += ["--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    link += ["--ssl-ca-certfile", "ca.pem", "--enable-supernode-auth"]
    started(stack, work, "superlink", link, env)
    until(lambda: listens(port), 60, "the SuperLink")
    home = Path(env["FLWR_HOME"])
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "tls"\n\n[superlink.tls]\naddress = "localhost:{port}"\n'
        f'root-certificates = "{work}/ca.pem"\n'
    )
    processes = []
    publics = [make_key(work / f"node-{i}.key") for i in range(nodes)]
    if signed:
        enrol(work, nodes)
    for i, public in enumerate(publics):
        register = ["flwr", "supernode", "register", str(public), "tls", "--name", f"node-{i}"]
        done = subprocess.run(register, env=env, capture_output=True, text=True, cwd=work)
        if done.returncode:
            sys.exit(f"{' '.join(register)}: {done.stdout} {done.stderr}")
        node = ["flower-supernode", "--superlink", f"127.0.0.1:{port}"]
        node += ["--root-certificates", "ca.pem", "--host", "127.0.0.1"]
        node += ["--port", str(free_port()), "--auth-supernode-private-key", f"node-{i}.key"]
        config = f"partition-id={i} num-partitions={nodes}"
        if signed:
            config += f' deltafl-identity="{work}/device-{i}.identity"'
            config += f' deltafl-devices="{work}/devices.txt"'
        node += ["--node-config", config]
        processes.append(started(stack, work, f"supernode-{i}", node, env))
    return "tls", processes


def simulation(stack, work, env):
    """Start a SuperLink that simulates its SuperNodes; the federation's name."""
    port = free_port()
    link = ["flower-superlink", "--insecure", "--simulation"]
    link += ["--disable-runtime-dependency-installation"]
    started(stack, work, "superlink", [*link, "--host", "127.0.0.1", "--port", str(port)], env)
    until(lambda: listens(port), 60, "the SuperLink")
    (Path(env["FLWR_HOME"]) / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    return "here"


def run(work, app, federation, options, env, on_round=None):
    """Run an app, and note when each round begins; the lines that the server logged."""
    command = ["flwr", "run", str(app), federation, "--stream"]
    command += ["--run-config", f"num-server-rounds={options.rounds}"]
    if options.simulation:  # all nodes of a round have to run at once
        nodes = options.nodes
        simulated = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={nodes}"
        command += ["--federation-config", simulated]
    process = subprocess.Popen(
        command, env=env, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines, began = [], []
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            if options.verbose:
                print(line, end="", flush=True)
            if found := ROUND.search(line):
                began.append(time.monotonic())
                if on_round is not None:
                    on_round(int(found.group(1)))
            if "Strategy execution finished" in line:
                began.append(time.monotonic())
            if "finished" in line.lower() and "run" in line.lower() and began[options.rounds :]:
                break
    finally:
        process.terminate()
    (work / f"{app.name}.log").write_text("\n".join(lines))
    seconds = [after - before for before, after in pairwise(began)]
    print(f"{app.name}: seconds of each round " + ", ".join(f"{one:.1f}" for one in seconds))
    for line in lines:
        if re.search(r"trips to|is gone|go on with|kept_devices|eval_acc|train_loss", line):
            print("   ", re.sub(r"\x1b\[[0-9;]*m", "", line).strip())
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kill", action="store_true", help="kill a SuperNode in the 2nd round")
    parser.add_argument("--secagg", action="store_true", help="FedAvg by secure aggregation")
    parser.add_argument("--simulation", action="store_true", help="in Flower's simulation")
    parser.add_argument("--only", choices=["plain", "private"], help="run only one of the apps")
    parser.add_argument("--signed", action="store_true", help="nodes with identities")
    parser.add_argument("--trips-over-tls", action="store_true", help="TLS for the trips as well")
    parser.add_argument("--verbose", action="store_true", help="print what Flower logs")
    parser.add_argument("--work", type=Path, help="keep everything here")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = work.resolve()
        work.mkdir(parents=True, exist_ok=True)
        home = work / "flwr"
        home.mkdir()
        env = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        write_certificates(work)
        plain, private, (added, removed) = make_apps(work, options)
        if options.nodes < USUAL_FEWEST:
            accept_fewer(private, options.nodes - 1)
        print(f"the patch adds {added} lines, and removes {removed}")
        if options.simulation:
            federation, processes = simulation(stack, work, env), []
        else:
            federation, processes = deployment(
                stack, work, options.nodes, env, signed=options.signed
            )

        def on_round(number):
            if number == 2 and options.kill:
                time.sleep(2.0)
                end(processes[-1])
                print("killed a SuperNode")

        if options.only != "private":
            run(work, plain, federation, options, env)
        if options.only != "plain":
            run(work, private, federation, options, env, on_round)


if __name__ == "__main__":
    main()
