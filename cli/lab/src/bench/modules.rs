//! Which modules of the NIC the instructions of a write belong to: callgrind counts those of each
//! line of the sources (P6).
//!
//! A function of a library that is inlined counts as the module that it is inlined into.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use super::tables::Tables;
use super::wire::packets::by_valgrind;

/// Writes in the two runs whose difference is counted.
const COUNTED: [u64; 2] = [3_200, 9_600];

/// Where the sources of the NIC are.
const NIC: &str = "device-backend/nic/src/";

/// What is not of the NIC: the program that moves frames, and the allocator.
const AROUND: &str = "the program around it";

/// All modules with less than [`SMALL`] instructions together.
const OTHERS: &str = "other modules";
const SMALL: f64 = 20.0;

/// Instructions by module.
type Counts = BTreeMap<String, f64>;

/// Adds the table; with a note instead of rows if nothing counts instructions.
pub(super) fn measure(program: &Path, tables: &mut Tables) {
    let counted = count(program).and_then(|modules| {
        let frame = by_valgrind(program, COUNTED, |command, count| {
            command.args(["frame", "8", &count.to_string()]);
        })?;
        Ok((modules, frame))
    });
    match counted {
        Ok((modules, frame)) => add(&modules, frame, tables),
        Err(error) => tables.note("modules", format!("not counted: {error:#}")),
    }
}

/// Adds rows, the largest module first.
fn add(modules: &Counts, frame: f64, tables: &mut Tables) {
    let mut modules: Vec<_> = modules
        .iter()
        .map(|(name, count)| (name.as_str(), *count))
        .collect();
    modules.sort_by(|one, other| other.1.total_cmp(&one.1));
    modules.push(("a frame filled in, copied and checked", frame));
    for (name, count) in modules {
        tables.add("modules", name, "both NICs [instructions]", count);
    }
}

/// Instructions of one write by module: the difference of two runs.
fn count(program: &Path) -> Result<Counts> {
    let [few, many] = COUNTED.map(|count| profile(program, count));
    let (few, mut modules) = (few?, many?);
    let writes = (COUNTED[1] - COUNTED[0]) as f64;
    for (module, count) in &mut modules {
        *count = (*count - few.get(module).copied().unwrap_or_default()) / writes;
    }
    let small: f64 = modules.values().filter(|count| **count < SMALL).sum();
    modules.retain(|_, count| *count >= SMALL);
    modules.insert(OTHERS.to_owned(), small);
    Ok(modules)
}

/// Instructions of a run by module.
fn profile(program: &Path, count: u64) -> Result<Counts> {
    let file = tempfile::NamedTempFile::new().context("make a file for callgrind")?;
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.path().display()))
        .arg(program)
        .args(["lossless", "8", &count.to_string()])
        .output()
        .context("valgrind cannot be started; apt-get install valgrind")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "callgrind says: {}", errors.trim());
    let text = std::fs::read_to_string(file.path()).context("read what callgrind has counted")?;
    parse(&text)
}

/// Instructions by module in a file of callgrind: of each line those that are its own, not those of
/// what it calls.
fn parse(text: &str) -> Result<Counts> {
    let mut names = BTreeMap::<&str, &str>::new();
    let (mut function, mut file, mut is_call) = ("", "", false);
    let mut counts = Counts::new();
    for line in text.lines() {
        let cost = line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c));
        if cost {
            // The line behind `calls=` has what the called function took.
            if !std::mem::take(&mut is_call) {
                let count = line.split_whitespace().nth(1);
                let count: Option<f64> = count.and_then(|count| count.parse().ok());
                let count = count.with_context(|| format!("line {line:?}"))?;
                *counts.entry(module(function, file)).or_default() += count;
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        match key {
            "fl" | "fi" | "fe" => {
                file = full_name(&mut names, value);
                if key == "fl" {
                    function = file;
                }
            }
            // Names of files are shared with these.
            "cfi" | "cfl" => drop(full_name(&mut names, value)),
            "calls" => is_call = true,
            _ => {}
        }
    }
    if counts.is_empty() {
        bail!("callgrind has counted nothing");
    }
    Ok(counts)
}

/// A name as callgrind shortens it: "(3) name" once, then "(3)".
fn full_name<'a>(names: &mut BTreeMap<&'a str, &'a str>, value: &'a str) -> &'a str {
    match value.split_once(' ') {
        Some((number, name)) => {
            names.insert(number, name);
            name
        }
        None => names.get(value).copied().unwrap_or(value),
    }
}

/// The module of a line that stands in `file`, within a function of the file `function`.
fn module(function: &str, file: &str) -> String {
    let within = |path: &str| {
        let (_, path) = path.split_once(NIC)?;
        let mut parts = path.trim_end_matches(".rs").split('/');
        let (first, second) = (parts.next()?, parts.next());
        match (first, second) {
            ("testing", _) => None,
            (_, None | Some("mod")) => Some(first.to_owned()),
            (_, Some(second)) => Some(format!("{first}/{second}")),
        }
    };
    let found = within(file).or_else(|| within(function));
    found.unwrap_or_else(|| AROUND.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
events: Ir
fl=(1) /x/device-backend/nic/src/transport/mod.rs
fn=(1) send
10 7
fi=(2) /rustc/library/core/src/ptr/mod.rs
+3 20
fe=(1)
calls=2 20
* 5000
12 3
fl=(3) /x/device-backend/nic/src/protocols/rdma/write.rs
fn=(2) turn
5 100
fl=(2)
fn=(3) free
9 40
fl=(4) /x/device-backend/nic/src/testing/net.rs
1 2
";

    #[test]
    fn lines_count_for_their_module_and_calls_for_none() {
        let counts = parse(FILE).unwrap();
        let all: Vec<_> = counts
            .iter()
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        let wanted = [
            ("protocols/rdma", 100.0),
            (AROUND, 42.0),
            ("transport", 30.0),
        ];
        assert_eq!(all, wanted);
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        assert!(parse("").is_err());
        assert!(parse("fl=(1) x\n7 many\n").is_err());
    }
}
