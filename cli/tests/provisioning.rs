//! What is told when the cache cannot be filled, and what is left then.

mod marked;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use procfs::process::Process;
use rustix::process::{geteuid, kill_process, Pid, Signal};

use marked::MARK;

/// Longest time for a run to reach a step, and to end.
const LIMIT: Duration = Duration::from_secs(120);

/// An address at which no process listens: of all ports, only this one cannot be listened on.
const UNUSED: &str = "http://127.0.0.1:0/debian";

/// A cache and a directory for builds that are empty, and a cluster file.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cache", "target", "cargo"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let cluster = "name = \"empty\"\n[[node]]\nname = \"a\"\ncount = 2\n";
        fs::write(dir.path().join("c.toml"), cluster).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program `program` with the cache of this place, its runtime directory, and the mirror.
    fn command(&self, program: &str, mirror: &str) -> Command {
        let mut command = Command::new(program);
        command.env("QNIC_CACHE", self.path("cache"));
        command.env("QNIC_DEBIAN_MIRROR", mirror);
        command.env("no_proxy", "127.0.0.1");
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command.env(MARK, self.dir.path());
        command.env_remove("QNIC_LOG").stdin(Stdio::null());
        command
    }

    /// Boots the cluster with `arguments`, in which `FILE` is its file. Returns status and errors.
    fn qnic(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = self.command(env!("CARGO_BIN_EXE_qnic"), UNUSED);
        command.args(arguments).arg(self.path("c.toml"));
        if arguments.contains(&"exec") {
            command.args(["--", "true"]);
        }
        ended(command.output().unwrap())
    }

    /// Fails if the cache has an artefact, or something that was not finished.
    fn has_nothing_half_made(&self) {
        let entries = |dir: &Path| -> Vec<String> {
            let entries = fs::read_dir(dir).into_iter().flatten();
            let names = entries.map(|entry| entry.unwrap().file_name());
            names.map(|name| name.into_string().unwrap()).collect()
        };
        let cache = self.path("cache");
        let artefacts: Vec<_> = entries(&cache)
            .into_iter()
            .filter(|name| name.contains('-'))
            .collect();
        assert_eq!(artefacts, [""; 0], "artefacts");
        assert_eq!(entries(&cache.join("tmp")), [""; 0], "unfinished");
        assert_eq!(entries(&cache.join("pins")), [""; 0], "pins");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        marked::kill(self.dir.path());
    }
}

fn ended(output: Output) -> (Option<i32>, String) {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), errors)
}

#[test]
fn a_mirror_that_does_not_answer_is_named_with_what_to_do() {
    for (arguments, status) in [(&["up"][..], 1), (&["exec"], 125)] {
        let place = Place::new();
        let (code, errors) = place.qnic(arguments);
        assert_eq!(code, Some(status), "{errors}");
        for part in ["127.0.0.1", "cannot be reached", "QNIC_DEBIAN_MIRROR"] {
            assert!(errors.contains(part), "no {part}: {errors}");
        }
        place.has_nothing_half_made();
    }
}

/// Runs the program where a directory, which a variable names, is a file system of its own, made
/// with these options. The file system is gone with the process, so the process itself looks at
/// what is left.
fn in_little_room(
    place: &Place,
    variable: (&str, &str),
    options: &str,
    arguments: &[&str],
) -> String {
    let script = "\"$@\"; status=$?; find \"$ROOM\" >&2; exit $status";
    let (code, errors) = script_in_little_room(place, variable, options, (script, arguments));
    assert_eq!(code, Some(1), "{errors}");
    errors
}

/// Runs a script there, whose arguments are the program and `arguments`.
fn script_in_little_room(
    place: &Place,
    (variable, directory): (&str, &str),
    options: &str,
    (script, arguments): (&str, &[&str]),
) -> (Option<i32>, String) {
    let mut command = place.command("unshare", UNUSED);
    command.env(variable, place.path(directory));
    command.env("ROOM", place.path(directory));
    // The program needs the same namespaces to build the module.
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c"]);
    let script = format!("mount -t tmpfs -o {options} none \"$ROOM\" || exit 77\n{script}");
    command.args([&script, "sh", env!("CARGO_BIN_EXE_qnic")]);
    command.args(arguments);
    let (code, errors) = ended(command.output().unwrap());
    assert_ne!(
        code,
        Some(77),
        "no mount or user namespaces here, which tests need as root or as a user: {errors}"
    );
    (code, errors)
}

/// A program that died has left a cluster without its records: cleaning up needs no room.
#[test]
fn a_full_runtime_directory_hinders_no_command_and_is_cleaned_up() {
    let place = Place::new();
    fs::create_dir(place.path("run")).unwrap();
    let script = "
        mkdir -p -m 700 \"$ROOM/qnic/dead/nodes\"
        dd if=/dev/zero of=\"$ROOM/qnic/dead/console.log\" bs=4096 2>/dev/null && exit 3
        \"$@\" || exit 4
        find \"$ROOM\" -mindepth 1 >&2";
    let variable = ("XDG_RUNTIME_DIR", "run");
    let (code, errors) =
        script_in_little_room(&place, variable, "size=64k", (script, &["ps", "--json"]));
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(
        errors.trim(),
        "qnic: removed cluster dead, whose owner had died"
    );
}

/// Before the mirror is asked for anything.
#[test]
fn a_cache_without_room_for_all_is_told_before_a_download() {
    let place = Place::new();
    let file = place.path("c.toml");
    let arguments = ["up", file.to_str().unwrap()];
    let errors = in_little_room(&place, ("QNIC_CACHE", "cache"), "size=100m", &arguments);
    for part in [
        "too small",
        "104 MB free",
        "3000 MB are wanted",
        "QNIC_CACHE",
    ] {
        assert!(errors.contains(part), "no {part}: {errors}");
    }
}

/// It takes four files.
#[test]
fn a_full_file_system_is_told_with_what_to_do() {
    let place = Place::new();
    let file = place.path("c.toml");
    let arguments = ["up", file.to_str().unwrap()];
    let errors = in_little_room(&place, ("QNIC_CACHE", "cache"), "nr_inodes=4", &arguments);
    for part in ["no space is left", "make room", "QNIC_CACHE"] {
        assert!(errors.contains(part), "no {part}: {errors}");
    }
    for half in ["/cache/tmp/", "/cache/pins/"] {
        assert!(!errors.contains(half), "{half}: {errors}");
    }
}

/// Cargo comes to compile, and there is no room for what it makes.
#[test]
fn a_full_directory_of_builds_is_told_with_what_to_do() {
    let place = Place::new();
    let arguments = ["demo", "--host"];
    let errors = in_little_room(
        &place,
        ("CARGO_TARGET_DIR", "target"),
        "size=64k",
        &arguments,
    );
    for part in ["no space is left", "make room", "CARGO_TARGET_DIR"] {
        assert!(errors.contains(part), "no {part}: {errors}");
    }
    assert!(
        errors.contains("/target/x86_64"),
        "nothing was built: {errors}"
    );
}

#[test]
fn a_registry_that_does_not_answer_is_named_with_what_to_do() {
    let place = Place::new();
    let mut command = place.command(env!("CARGO_BIN_EXE_qnic"), UNUSED);
    command.args(["demo", "--host"]);
    command.env("CARGO_HOME", place.path("cargo"));
    command.env("CARGO_TARGET_DIR", place.path("target"));
    command.env("CARGO_NET_RETRY", "0");
    command.env("CARGO_HTTP_PROXY", "http://127.0.0.1:9");
    let (code, errors) = ended(command.output().unwrap());
    assert_eq!(code, Some(1), "{errors}");
    for part in [
        "registry of crates cannot be reached",
        "check the network",
        "CARGO_HOME",
    ] {
        assert!(errors.contains(part), "no {part}: {errors}");
    }
}

/// A signal while cargo compiles and apt waits for a mirror: both end, with all they have
/// started.
#[test]
fn a_signal_ends_builds_and_downloads_that_run_side_by_side() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        // It takes connections, and says nothing.
        let mirror = TcpListener::bind("127.0.0.1:0").unwrap();
        mirror.set_nonblocking(true).unwrap();
        let address = format!("http://{}/debian", mirror.local_addr().unwrap());
        let mut command = place.command(env!("CARGO_BIN_EXE_qnic"), &address);
        command.arg("up").arg(place.path("c.toml"));
        command.env("CARGO_TARGET_DIR", place.path("target"));
        command.stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let begun = |names: &BTreeSet<String>| names.contains("rustc") && names.contains("apt-get");
        let start = Instant::now();
        let mut connection = None;
        while connection.is_none() || !begun(&marked::names(place.dir.path())) {
            connection = connection.or_else(|| mirror.accept().ok());
            assert!(
                start.elapsed() < LIMIT,
                "{:?}",
                marked::names(place.dir.path())
            );
            assert_eq!(run.try_wait().unwrap(), None, "it ended early");
        }
        kill_process(Pid::from_raw(run.id() as i32).unwrap(), signal).unwrap();
        wait_ended(&mut run);
        let (code, errors) = ended(run.wait_with_output().unwrap());
        // Between the two looks, a process may be ending.
        let looks = [0; 2].map(|_| names_of_unended(place.dir.path()));
        let left = looks[0].intersection(&looks[1]);
        assert_eq!(left.count(), 0, "{signal:?}: {looks:?} run on");
        assert_eq!(code, Some(130), "{signal:?}: {errors}");
        place.has_nothing_half_made();
    }
}

/// Flag of a process that is ending (`PF_EXITING`).
const EXITING: u32 = 0x4;

/// The names of the processes that run on. One that was killed has not: it runs no line of its own
/// any more, but a busy machine takes a while to end it.
fn names_of_unended(mark: &Path) -> BTreeSet<String> {
    let deadly = [Signal::TERM, Signal::KILL].map(|signal| 1 << (signal.as_raw() - 1));
    let is_ending = |process: &Process| {
        let (Ok(stat), Ok(status)) = (process.stat(), process.status()) else {
            return true;
        };
        let pending = status.sigpnd | status.shdpnd;
        stat.flags & EXITING != 0 || deadly.iter().any(|signal| pending & signal != 0)
    };
    let left = marked::processes(mark).into_iter();
    let left = left.filter(|process| !is_ending(process));
    left.filter_map(|process| Some(process.stat().ok()?.comm))
        .collect()
}

fn wait_ended(run: &mut Child) {
    let start = Instant::now();
    while run.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < LIMIT, "it does not end");
    }
}
