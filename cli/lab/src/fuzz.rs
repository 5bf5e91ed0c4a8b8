//! `qnic fuzz`: builds the programs of `tests/fuzz/targets` with coverage, and has libFuzzer run
//! them one after the other (X8; docs/fuzzing.md).
//!
//! ```text
//!   tests/fuzz/corpus/TARGET ──► libFuzzer ──► target/fuzz/corpus/TARGET   what reaches more
//!                              └───────► tests/fuzz/regressions/TARGET what breaks a promise
//! ```

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_cli::lab::fuzz::Options;
use qnic_fuzz::{Target, TARGETS};

mod coverage;

/// What makes LLVM count the edges that run and compare what is compared; the same that
/// cargo-fuzz passes.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1";

/// Most memory of a program in MiB, and most seconds for one input.
const MEMORY_MIB: u32 = 2048;
const INPUT_SECONDS: u32 = 60;

/// Lines of a failed program that are shown.
const SHOWN: usize = 12;

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let only = options.target.as_deref();
    let only = only.map(|name| Target::named(name).context("there is no such target"));
    let only = only.transpose()?;
    if let (Some(target), Some(file)) = (only, &options.input) {
        return again(target, file);
    }
    let root = qnic_cluster::repository()
        .context("fuzzing needs the checkout that this program was built from")?;
    if options.coverage {
        return coverage::run(&root, only, options.json.as_deref());
    }
    let programs = build(&root, options.asan)?;
    let mut found = 0;
    for target in TARGETS
        .iter()
        .filter(|one| only.is_none_or(|it| it.name == one.name))
    {
        let fuzzing = Fuzzing {
            target,
            program: programs.join(target.name),
            work: root.join("target/fuzz/corpus").join(target.name),
        };
        let input = fuzzing.run(options.minutes)?;
        found += usize::from(input);
        if options.keep && !input {
            fuzzing.keep()?;
        }
    }
    println!("\n{found} targets with findings");
    Ok(match found {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Runs one input in this process.
fn again(target: &'static Target, file: &Path) -> Result<ExitCode> {
    let data = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let passed = catch_unwind(|| (target.run)(&data)).is_ok();
    println!("{} {}", target.name, if passed { "ok" } else { "FAILED" });
    Ok(match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Builds all programs; returns their folder.
fn build(root: &Path, asan: bool) -> Result<PathBuf> {
    let host = host()?;
    let folder = root.join(if asan {
        "target/fuzz-asan"
    } else {
        "target/fuzz"
    });
    let mut flags = COVERAGE.to_owned();
    let mut command = Command::new(cargo());
    if asan {
        flags.push_str(" -Zsanitizer=address");
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    // With a target named, the flags are not those of build scripts and macros.
    let status = command
        .args([
            "build",
            "--package",
            "qnic-fuzz",
            "--features",
            "libfuzzer",
            "--bins",
        ])
        .args(["--profile", "fuzz", "--target", &host, "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", flags)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    ensure!(
        status.success(),
        "the fuzz targets cannot be built, see above"
    );
    Ok(folder.join(host).join("fuzz"))
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn rustc() -> OsString {
    std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

/// The machine that this toolchain builds for.
fn host() -> Result<String> {
    let output = Command::new(rustc()).arg("-vV").output();
    let output = output.context("start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc does not say its host")
}

/// One target under libFuzzer.
struct Fuzzing {
    target: &'static Target,
    program: PathBuf,
    /// New inputs.
    work: PathBuf,
}

impl Fuzzing {
    /// Fuzzes for so long. Returns true if something was found, and says what.
    fn run(&self, time: Duration) -> Result<bool> {
        let Target {
            name,
            what,
            longest,
            ..
        } = self.target;
        let regressions = self.target.regressions();
        for folder in [&self.work, &regressions] {
            std::fs::create_dir_all(folder)?;
        }
        let mut child = Command::new(&self.program)
            .arg(format!("-max_total_time={}", time.as_secs().max(1)))
            .arg(format!("-max_len={longest}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-artifact_prefix={}/", regressions.display()))
            .args([&self.work, &self.target.corpus()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let bar = match std::io::stderr().is_terminal() {
            true => indicatif::ProgressBar::new_spinner(),
            false => indicatif::ProgressBar::hidden(),
        };
        let mut log = std::fs::File::create(self.work.with_extension("log"))?;
        let (mut last, mut tail) = (String::new(), Vec::new());
        let output = child.stderr.take().context("it has no output")?;
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            writeln!(log, "{line}")?;
            match progress(&line) {
                Some(progress) => {
                    bar.set_message(format!("{name}: {progress}"));
                    bar.tick();
                    last = progress;
                }
                None => tail.push(line),
            }
            tail.drain(..tail.len().saturating_sub(1000));
        }
        bar.finish_and_clear();
        let status = child.wait().context("wait for libFuzzer")?;
        let verdict = if status.success() { "ok" } else { "FOUND" };
        println!("{name} ({what}) … {verdict}: {last}");
        if !status.success() {
            self.tell(&tail);
        }
        Ok(!status.success())
    }

    /// Says what was found, where its input lies and how to run it again.
    fn tell(&self, output: &[String]) {
        let first = output.iter().position(|line| is_finding(line)).unwrap_or(0);
        for line in output[first..].iter().take(SHOWN) {
            println!("  | {line}");
        }
        let written = output
            .iter()
            .find_map(|line| line.split_once("Test unit written to "));
        match written {
            Some((_, file)) => {
                println!("  input: {file}");
                println!(
                    "  again: cargo qnic fuzz {} --input {file}",
                    self.target.name
                );
            }
            None => println!(
                "  all it has said: {}",
                self.work.with_extension("log").display()
            ),
        }
    }

    /// Replaces the corpus by the fewest inputs that reach the same code.
    fn keep(&self) -> Result<()> {
        let corpus = self.target.corpus();
        let fewest = self.work.with_extension("fewest");
        let _ = std::fs::remove_dir_all(&fewest);
        std::fs::create_dir_all(&fewest)?;
        let status = Command::new(&self.program)
            .args(["-set_cover_merge=1", "-use_counters=0"])
            .args([&fewest, &corpus, &self.work])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("start libFuzzer")?;
        ensure!(
            status.success(),
            "the corpus of {} cannot be made",
            self.target.name
        );
        let _ = std::fs::remove_dir_all(&corpus);
        std::fs::create_dir_all(&corpus)?;
        let inputs = qnic_fuzz::inputs::read(&fewest)?;
        for input in &inputs {
            let name = input.path.file_name().context("a file has a name")?;
            std::fs::copy(&input.path, corpus.join(name))?;
        }
        println!("  {} inputs in {}", inputs.len(), corpus.display());
        Ok(())
    }
}

/// What a status line of libFuzzer says, without its event.
fn progress(line: &str) -> Option<String> {
    let (runs, rest) = line.strip_prefix('#')?.split_once('\t')?;
    runs.parse::<u64>().ok()?;
    let figures = &rest[rest.find("cov: ")?..];
    let figures = figures.split(" L: ").next().unwrap_or(figures);
    Some(format!("{runs} runs, {figures}"))
}

/// Returns true for the line with which a panic or libFuzzer's own report begins.
fn is_finding(line: &str) -> bool {
    line.contains("panicked at") || line.contains("ERROR: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_are_read() {
        let line = "#4096\tpulse  cov: 12 ft: 34 corp: 5/67b lim: 43 exec/s: 1360 rss: 32Mb";
        let read = "4096 runs, cov: 12 ft: 34 corp: 5/67b lim: 43 exec/s: 1360 rss: 32Mb";
        assert_eq!(progress(line).as_deref(), Some(read));
        assert_eq!(progress("#0 0x55 in main"), None);
        assert_eq!(progress("INFO: Seed: 1"), None);
        assert!(is_finding(
            "==7== ERROR: libFuzzer: timeout after 60 seconds"
        ));
    }

    /// Each target has its program, and the help names it.
    #[test]
    fn targets_are_built_and_named() {
        use clap::Args;
        let programs = std::fs::read_to_string(qnic_fuzz::inputs::folder().join("Cargo.toml"));
        let programs = programs.unwrap();
        let help = Options::augment_args(clap::Command::new("fuzz"));
        let help = help.get_after_help().unwrap().to_string();
        assert_eq!(
            TARGETS.map(|target| target.name),
            qnic_cli::lab::fuzz::TARGETS
        );
        for Target { name, .. } in TARGETS {
            assert!(
                programs.contains(&format!("path = \"targets/{name}.rs\"")),
                "{name}"
            );
            assert!(help.contains(name), "{name}");
        }
    }
}
