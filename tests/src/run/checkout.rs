//! The jobs of cargo: static checks, builds of tests, and the programs that these build.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Results, FEATURES};
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

/// Formatting, lints, documentation and builds of tests; those of guests unless `quick`.
pub(super) fn jobs(root: &Path, quick: bool, results: &mut Results) -> Vec<Job> {
    let lint = format!("{FEATURES} --all-targets --quiet -- -D warnings");
    let lint_guests = format!("{FEATURES} --test plain_guests --quiet -- -D warnings");
    let document = format!("{FEATURES} --no-deps --quiet");
    let build =
        format!("{FEATURES} --no-fail-fast --no-run --message-format=json-render-diagnostics");
    let build_guests = format!("{build} --test plain_guests");
    let examples = format!("{FEATURES} --no-fail-fast --doc");
    let mut jobs = Vec::new();
    for (name, tool, arguments, kind) in [
        ("static::format", "fmt", "--all --check", Kind::Check),
        ("static::lints", "clippy", &lint, Kind::Check),
        (
            "static::lints_of_guest_tests",
            "clippy",
            &lint_guests,
            Kind::Check,
        ),
        ("build of the tests", "test", &build, Kind::Build),
        (
            "build of the tests of guests",
            "test",
            &build_guests,
            Kind::Build,
        ),
        ("static::documentation", "doc", &document, Kind::Check),
        (
            "examples in the documentation",
            "test",
            &examples,
            Kind::Tests,
        ),
    ] {
        if quick && arguments.contains("--test plain_guests") && kind == Kind::Build {
            continue;
        }
        if !has_tool(root, tool) {
            let why = format!("cargo has no {tool}; install that component");
            results.skip(name, &why);
            continue;
        }
        let mut command = cargo(root);
        command.arg(tool).args(arguments.split(' '));
        command.env("RUSTDOCFLAGS", "-D warnings");
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

/// The programs of tests that cargo has built, as it says in `output`, and what else stands there.
///
/// # Errors
/// Returns an error if cargo names a program without its package.
pub(super) fn programs(root: &Path, output: &str) -> Result<(Vec<Job>, String)> {
    let (mut jobs, mut rest) = (Vec::new(), String::new());
    for line in output.lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(message) if message.is_object() => jobs.extend(program(root, &message)?),
            _ => rest += &format!("{line}\n"),
        }
    }
    // What waits begins first, beside the others.
    jobs.sort_by_key(|job| job.load.processors);
    Ok((jobs, rest))
}

/// The program that a message tells of, to be run as `cargo test` runs it.
fn program(root: &Path, message: &Value) -> Result<Option<Job>> {
    let is_test = message["profile"]["test"] == true;
    let Some(executable) = message["executable"].as_str().filter(|_| is_test) else {
        return Ok(None);
    };
    let manifest = message["manifest_path"].as_str().map(Path::new);
    let package = manifest.and_then(Path::parent);
    let package = package.with_context(|| format!("{executable}: of no package"))?;
    let target = message["target"]["name"].as_str().unwrap_or_default();
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

    #[test]
    fn programs_of_tests_are_found_among_cargos_messages() {
        let of = |target: &str, test: bool, executable: Value| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": "/r/cli/Cargo.toml",
                "target": { "name": target, "src_path": format!("/r/cli/tests/{target}.rs") },
                "profile": { "test": test },
                "executable": executable,
            })
            .to_string()
        };
        let output = [
            of("lines", true, "/t/lines-1".into()),
            "   Compiling qnic-cli".to_owned(),
            of("library", true, Value::Null),
            of("qnic", false, "/t/qnic".into()),
            of("interrupted", true, "/t/interrupted-1".into()),
        ];
        let (jobs, rest) = programs(Path::new("/r"), &output.join("\n")).unwrap();
        assert_eq!(rest, "   Compiling qnic-cli\n");
        let found: Vec<_> = jobs
            .iter()
            .map(|job| (&*job.name, job.load.processors))
            .collect();
        let expected = [("cli/tests/interrupted.rs", 0), ("cli/tests/lines.rs", 1)];
        assert_eq!(found, expected);
        assert_eq!(jobs[1].command.get_program(), "/t/lines-1");
        assert_eq!(jobs[1].command.get_current_dir(), Some(Path::new("/r/cli")));
    }
}
