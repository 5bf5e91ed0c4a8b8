//! The program as a user calls it, as far as no guest is needed.

use std::path::Path;
use std::process::{Command, Output};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn qnic(&self, args: &[&str]) -> (i32, String, String) {
        self.qnic_logging(None, args)
    }

    fn qnic_logging(&self, log: Option<&str>, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qnic"));
        command
            .args(args)
            .env("XDG_RUNTIME_DIR", self.0.path())
            // Clusters on Slurm have their directories there.
            .env("QNIC_CACHE", self.0.path().join("cache"))
            .env_remove("QNIC_LOG")
            .envs(log.map(|log| ("QNIC_LOG", log)));
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    /// Checks that it fails with this status and says this.
    fn fails(&self, args: &[&str], status: i32, part: &str) {
        let (code, _, err) = self.qnic(args);
        assert_eq!(code, status, "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {err}");
    }

    fn file(&self, text: &str) -> String {
        let path = self.0.path().join("cluster.toml");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn is_untouched(&self) -> bool {
        !Path::new(self.0.path()).join("qnic").exists()
    }
}

#[test]
fn an_error_in_a_cluster_file_is_told_with_its_place() {
    let place = Place::new();
    let file = place.file("name = \"x\"\n[[node]]\nname = \"a\"\nmemory = \"lots\"\n");
    let (code, out, err) = place.qnic(&["up", &file]);
    assert_eq!((code, out.as_str()), (2, ""));
    let expected = format!(
        "qnic: {file}:4:10: node[0].memory: expected a size such as \"256MiB\" or \"1GiB\", found \"lots\"\n  | memory = \"lots\"\n"
    );
    assert_eq!(err, expected);
    assert!(place.is_untouched());
}

#[test]
fn what_is_to_be_logged_is_checked() {
    let place = Place::new();
    for log in ["debug", "warn,qnic_cluster=trace", "off"] {
        let (code, _, err) = place.qnic_logging(Some(log), &["ps"]);
        assert_eq!((code, err.as_str()), (0, ""), "{log}");
    }
    let (code, _, err) = place.qnic_logging(Some("qnic=loud"), &["ps"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.starts_with("qnic: QNIC_LOG=qnic=loud: "), "{err}");
    assert!(
        err.contains("say error, warn, info, debug or trace"),
        "{err}"
    );
}

#[test]
fn a_file_that_is_missing_is_named() {
    let (code, _, err) = Place::new().qnic(&["up", "/nowhere/c.toml"]);
    assert_eq!(
        (code, err.starts_with("qnic: cannot read /nowhere/c.toml: ")),
        (2, true),
        "{err}"
    );
}

#[test]
fn print_config_spells_out_the_defaults_and_can_be_read_again() {
    let place = Place::new();
    let file = place.file("name = \"x\"\n[[node]]\nname = \"a\"\ncount = 2\n");
    let (code, first, _) = place.qnic(&["up", &file, "--print-config"]);
    assert_eq!(code, 0);
    assert!(
        first.contains("name = \"a1\"") && first.contains("memory = \"256MiB\""),
        "{first}"
    );
    let (_, second, _) = place.qnic(&["up", &place.file(&first), "--print-config"]);
    assert_eq!(first, second);
    assert!(place.is_untouched());
}

#[test]
fn without_clusters_each_command_says_so_in_its_way() {
    let place = Place::new();
    assert_eq!(
        place.qnic(&["ps", "--json"]),
        (0, "[]\n".to_owned(), String::new())
    );
    for (args, expected) in [
        (&["run", "a", "--", "true"][..], 125),
        (&["cp", "/etc/hostname", "a:/x"], 1),
        (&["logs", "a"], 1),
        (&["pause", "a"], 1),
        (&["grow", "a", "128MiB"], 1),
        (&["gdb", "a", "--print"], 1),
        (&["dump", "a"], 1),
        (&["resume", "a"], 1),
        (&["ping", "a", "b"], 1),
        (&["down"], 1),
        (&["machine", "ls"], 1),
        (&["machine", "create", "lab", "--nodes", "a"], 1),
        (&["machine", "rm", "lab"], 1),
        (&["machine", "run", "lab", "--", "true"], 125),
        (&["mpirun", "-n", "2", "true", "-x"], 125),
    ] {
        place.fails(args, expected, "no cluster is running");
    }
    assert_eq!(place.qnic(&["down", "--all"]).0, 0);
    place.fails(&["down", "x"], 1, "there is no cluster \"x\"");
    assert!(place.is_untouched());
}

#[test]
fn a_package_takes_the_place_of_nothing() {
    let place = Place::new();
    let file = place.file("mine");
    for there in [&*file, place.0.path().to_str().unwrap()] {
        for command in ["dkms", "package"] {
            place.fails(&[command, there], 1, "is there already");
        }
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

/// An installed program has the name of its file, and neither builds anything nor looks for the clone.
#[test]
fn an_installed_program_builds_nothing() {
    let place = Place::new();
    let dir = place.0.path().join("lib/qnic");
    std::fs::create_dir_all(dir.join("source")).unwrap();
    std::fs::write(dir.join("source/dkms.conf"), "").unwrap();
    let program = dir.join("qnic");
    std::fs::copy(env!("CARGO_BIN_EXE_qnic"), &program).unwrap();
    let link = place.0.path().join("qnic");
    std::os::unix::fs::symlink("lib/qnic/qnic", &link).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(&link);
        command.args(args).env("PATH", "/nowhere");
        command.env("XDG_RUNTIME_DIR", place.0.path());
        let output = command.env("CARGO", "/nowhere/cargo").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (status, help) = run(&["demo", "--help"]);
    assert!(
        status == Some(0) && help.contains("Usage: qnic demo"),
        "{help}"
    );
    assert!(!help.contains("cargo"), "{help}");
    for (args, part) in [
        (&["demo", "--host"][..], "it is not beside"),
        (&["test"], "qnic-suite: it is not beside"),
        (&["package", "x"], "packages are made in a clone"),
        (&["new", "x"], "needs the checkout"),
    ] {
        let (status, said) = run(args);
        assert!(status == Some(1) && said.contains(part), "{args:?}: {said}");
        assert!(!said.contains("/nowhere"), "{args:?}: {said}");
    }
}

#[test]
fn wrong_command_lines_are_refused() {
    let place = Place::new();
    for args in [
        &["run", "a"][..],
        &["run", "a", "--timeout", "soon", "--", "true"],
        &["run", "a", "--env", "=1", "--", "true"],
        &["down", "x", "--all"],
        &["net", "set", "all", "--rate", "fast"],
        &["pause"],
        &["dkms"],
        &["package"],
        &["grow", "a"],
        &["gdb", "a", "--print", "--off"],
        &["dump", "a", "b"],
        &["grow", "a", "much"],
        &["resume", "a", "b"],
        &["ping", "a"],
        &["ping", "a", "b", "--timeout", "soon"],
        &["machine", "create", "lab"],
        &[
            "machine",
            "create",
            "lab",
            "--nodes",
            "a",
            "--interface",
            "tcp",
        ],
        &["machine", "run", "lab"],
        &["machine", "run", "lab", "-n", "few", "--", "true"],
        &["mpirun"],
        &["mpirun", "-n", "0", "true"],
        &["mpirun", "--over", "air", "true"],
        &["mpirun", "--mca", "pml", "true"],
        &["fly"],
    ] {
        assert_eq!(place.qnic(args).0, 2, "{args:?}");
    }
}

#[test]
fn a_wrong_rate_is_refused_with_what_is_allowed() {
    let place = Place::new();
    for rate in ["fast", "0bit", "", "None"] {
        let args = ["net", "set", "all", "--rate", rate];
        let allowed = "expected a rate such as \"10Gbit\", \"100Mbit\" or \"64kbit\" (per second)";
        place.fails(&args, 2, allowed);
        place.fails(&args, 2, "\"none\" takes the rate away");
    }
    let args = ["net", "set", "all", "--rate", "none"];
    place.fails(&args, 1, "no cluster is running");
}

/// What is wrong with a trial or a matrix is told before anything is booted.
#[test]
fn trials_that_cannot_be_are_refused_at_once() {
    let place = Place::new();
    let file = place.file("name = \"x\"\n[[node]]\nname = \"a\"\n");
    let broken = place.0.path().join("broken.toml");
    std::fs::write(
        &broken,
        "name = \"x\"\n[[network.schedule]]\nat = \"soon\"\n",
    )
    .unwrap();
    let broken = broken.to_str().unwrap();
    let place_of_error = format!("{broken}:3:6: network.schedule[0].at: expected a time");
    for (args, part) in [
        (&["exec", broken, "--", "true"][..], &*place_of_error),
        (&["exec", &file, "--on", "b", "--", "true"], "no node \"b\""),
        (
            &["exec", &file, "--set", "loss=5", "--", "true"],
            "loss=5: expected a percentage",
        ),
        (
            &["exec", &file, "--", "./nowhere"],
            "cannot read the program ./nowhere",
        ),
        (
            &["exec", &file, "--junit", "/proc/x", "--", "true"],
            "cannot write the report /proc/x",
        ),
        (
            &["matrix", &file, "--vary", "loss=1%,2", "--", "true"],
            "--vary loss=2",
        ),
        (
            &["matrix", &file, "--vary", "speed=1", "--", "true"],
            "there is no such setting",
        ),
        (
            &["matrix", &file, "--vary", "cpus=0", "--", "true"],
            "cpus=0 seed=0: node[0].cpus",
        ),
    ] {
        place.fails(args, 125, part);
    }
    assert!(place.is_untouched());
}

/// What goes with Slurm alone is refused without it, and what does not go with it yet (X16).
#[test]
fn options_of_slurm_are_refused_where_they_say_nothing() {
    let place = Place::new();
    let file = place.file("name = \"x\"\n[[node]]\nname = \"a\"\n");
    let alone = "--partition, --time, --hosts and --dry-run go with --on slurm";
    place.fails(&["up", &file, "--partition", "p"], 1, alone);
    place.fails(&["exec", &file, "--hosts", "2", "--", "true"], 125, alone);
    let on = ["--on", "slurm", "--junit", "x", "--", "true"];
    place.fails(&[&["exec", &file], &on[..]].concat(), 125, "--artifacts");
    let on = ["--on", "slurm", "--vary", "loss=0", "--", "true"];
    place.fails(
        &[&["matrix", &file], &on[..]].concat(),
        125,
        "exec --on slurm",
    );
    let named = place.file("name = \"x\"\n[[node]]\nname = \"slurm\"\n");
    place.fails(
        &["exec", &named, "--", "true"],
        125,
        "a node is called \"slurm\"",
    );
    assert!(place.is_untouched());
}
