//! The jobs of cargo: static checks, the build of tests, and the programs that it builds.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{is_long, testing_cargo, Results, FEATURES};
use crate::schedule::Load;
use anyhow::{Context, Result};
use qnic_cluster::cargo;
use serde_json::Value;

use super::jobs::{Job, Kind, BUILD_LIMIT, LIMIT};

/// Cargo's jobs wait for each other's locks otherwise. Each keeps all processors busy.
const CARGO: Load = Load {
    processors: 2,
    mebibytes: 4096,
    lane: Some("cargo"),
};

/// A program of tests.
const PROGRAM: Load = Load {
    processors: 1,
    mebibytes: 1024,
    lane: None,
};

/// Programs of tests that mostly wait, by the names of their targets.
const WAITING: [&str; 3] = ["interrupted", "host_mode", "several_engines"];

/// The check that the build of the tests is, and that of what no other build has.
const LINTS: [&str; 2] = ["static::lints", "static::lints_of_benchmarks"];

/// What the build of the tests leaves out.
const OTHERS: &str = "--test plain_guests --bench *";

/// The program of tests that boots guests.
const OF_GUESTS: &str = "plain_guests";

/// The documentation of all packages, as cargo makes it.
const DOCUMENTATION: &str = "static::documentation";

/// Formatting, documentation and builds of tests, which are linted as they are built. That of libraries is
/// made with its examples (`ci/rustdoc`), from what the build of the tests has compiled.
pub(super) fn jobs(root: &Path, results: &mut Results) -> Vec<Job> {
    let build = format!("{FEATURES} --no-fail-fast --no-run --message-format=json");
    let others = format!("{build} {OTHERS}");
    let document = format!("{FEATURES} --no-deps --quiet");
    let examples = format!("{FEATURES} --no-fail-fast --doc");
    let (_, linted) = testing_cargo(root);
    if !linted {
        for lints in LINTS {
            results.skip(lints, "cargo has no clippy; install that component");
        }
    }
    let [lints, lints_of_others] = LINTS.map(|lints| linted.then_some(lints));
    if !is_long() {
        let why = "a long check: --all adds it; that of libraries is made with its examples";
        results.skip(DOCUMENTATION, why);
    }
    let mut jobs = Vec::new();
    for (name, tool, arguments, kind) in [
        ("static::format", "fmt", "--all --check", Kind::Check),
        ("build of the tests", "test", &build, Kind::Build { lints }),
        (
            "build of benchmarks and of tests of guests",
            "test",
            &others,
            Kind::Build {
                lints: lints_of_others,
            },
        ),
        (DOCUMENTATION, "doc", &document, Kind::Check),
        (
            "documentation of libraries, and its examples",
            "test",
            &examples,
            Kind::Tests,
        ),
    ] {
        if name == DOCUMENTATION && !is_long() {
            continue;
        }
        if !has_tool(root, tool) {
            let why = format!("cargo has no {tool}; install that component");
            results.skip(name, &why);
            continue;
        }
        let mut command = match tool {
            "test" => testing_cargo(root).0,
            _ => cargo(root),
        };
        command.arg(tool).args(arguments.split(' '));
        command.env("RUSTDOCFLAGS", "-D warnings");
        if tool == "test" {
            command.env("RUSTDOC", root.join("ci/rustdoc"));
        }
        jobs.push(Job {
            name: name.to_owned(),
            load: CARGO,
            command,
            kind,
            limit: BUILD_LIMIT,
        });
    }
    jobs.push(files_of_ci(root));
    jobs
}

/// The check of what CI systems read, which says with status 77 that it cannot be done here.
fn files_of_ci(root: &Path) -> Job {
    let mut command = Command::new(root.join("ci/lint"));
    command.current_dir(root);
    Job {
        name: "static::files_of_ci".to_owned(),
        load: Load {
            processors: 0,
            ..PROGRAM
        },
        command,
        kind: Kind::Check,
        limit: BUILD_LIMIT,
    }
}

fn has_tool(root: &Path, tool: &str) -> bool {
    cargo(root)
        .args([tool, "--help"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What a build of tests has printed.
#[derive(Default)]
pub(super) struct Built {
    /// The programs of tests.
    pub(super) programs: Vec<Job>,
    /// Warnings of the compiler and its lints, errors, and what is no message.
    pub(super) said: String,
    /// How many warnings and errors.
    pub(super) complaints: usize,
}

/// Reads what cargo has printed. Programs that boot guests are left out if `quick`.
///
/// # Errors
/// Returns an error if cargo names a program without its package.
pub(super) fn built(root: &Path, output: &str, quick: bool) -> Result<Built> {
    let mut built = Built::default();
    for line in output.lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(message) if message["reason"] == "compiler-message" => {
                let message = &message["message"];
                built.said += message["rendered"].as_str().unwrap_or_default();
                let level = message["level"].as_str();
                let complains = level.is_some_and(|level| ["warning", "error"].contains(&level));
                built.complaints += usize::from(complains);
            }
            Ok(message) if message.is_object() => {
                built.programs.extend(program(root, &message, quick)?);
            }
            _ => built.said += &format!("{line}\n"),
        }
    }
    // What waits begins first, beside the others.
    built.programs.sort_by_key(|job| job.load.processors);
    Ok(built)
}

/// The program that a message tells of, to be run as `cargo test` runs it.
fn program(root: &Path, message: &Value, quick: bool) -> Result<Option<Job>> {
    let target = message["target"]["name"].as_str().unwrap_or_default();
    let is_bench = message["target"]["kind"][0] == "bench";
    let is_test = message["profile"]["test"] == true && !is_bench;
    let runs = is_test && !(quick && target == OF_GUESTS);
    let Some(executable) = message["executable"].as_str().filter(|_| runs) else {
        return Ok(None);
    };
    let manifest = message["manifest_path"].as_str().map(Path::new);
    let package = manifest.and_then(Path::parent);
    let package = package.with_context(|| format!("{executable}: of no package"))?;
    let source = Path::new(message["target"]["src_path"].as_str().unwrap_or_default());
    let source = source.strip_prefix(root).unwrap_or(source);
    let mut command = Command::new(executable);
    command.current_dir(package);
    command.env("CARGO_MANIFEST_DIR", package);
    let waits = WAITING.contains(&target);
    Ok(Some(Job {
        name: source.display().to_string(),
        load: Load {
            processors: usize::from(!waits),
            ..PROGRAM
        },
        command,
        kind: Kind::Tests,
        limit: LIMIT,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(kind: &str, target: &str, test: bool, executable: Value) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/r/cli/Cargo.toml",
            "target": {
                "kind": [kind],
                "name": target,
                "src_path": format!("/r/cli/tests/{target}.rs"),
            },
            "profile": { "test": test },
            "executable": executable,
        })
        .to_string()
    }

    fn names(built: &Built) -> Vec<(&str, usize)> {
        let jobs = built.programs.iter();
        jobs.map(|job| (&*job.name, job.load.processors)).collect()
    }

    #[test]
    fn programs_of_tests_are_found_among_cargos_messages() {
        let output = [
            artifact("test", "lines", true, "/t/lines-1".into()),
            "   Compiling qnic-cli".to_owned(),
            artifact("lib", "library", true, Value::Null),
            artifact("bin", "qnic", false, "/t/qnic".into()),
            artifact("bench", "engine", true, "/t/engine".into()),
            artifact("test", "interrupted", true, "/t/interrupted-1".into()),
        ];
        let built = built(Path::new("/r"), &output.join("\n"), false).unwrap();
        assert_eq!(built.said, "   Compiling qnic-cli\n");
        assert_eq!(built.complaints, 0);
        let expected = [("cli/tests/interrupted.rs", 0), ("cli/tests/lines.rs", 1)];
        assert_eq!(names(&built), expected);
        assert_eq!(built.programs[1].command.get_program(), "/t/lines-1");
        let directory = built.programs[1].command.get_current_dir();
        assert_eq!(directory, Some(Path::new("/r/cli")));
    }

    #[test]
    fn tests_of_guests_are_built_but_not_run_if_it_has_to_be_quick() {
        let output = artifact("test", OF_GUESTS, true, "/t/plain_guests-1".into());
        let of = |quick| built(Path::new("/r"), &output, quick).unwrap();
        assert_eq!(names(&of(true)), []);
        assert_eq!(names(&of(false)), [("cli/tests/plain_guests.rs", 1)]);
    }

    #[test]
    fn what_the_compiler_complains_of_is_shown_and_counted() {
        let message = |level: &str| {
            serde_json::json!({
                "reason": "compiler-message",
                "message": { "level": level, "rendered": format!("{level}: too many arguments\n") },
            })
            .to_string()
        };
        let output = [message("warning"), message("note"), message("error")].join("\n");
        let built = built(Path::new("/r"), &output, false).unwrap();
        assert_eq!(built.complaints, 2);
        assert_eq!(built.said.lines().count(), 3);
    }
}
