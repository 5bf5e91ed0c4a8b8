//! `qnic bench host` and `qnic bench vm`: latency and bandwidth over size, beside the floor that
//! the same machine gives in the same run.

use anyhow::{Context, Result};
use qnic_apps::report::BenchRow;
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::{Nodes, Running};
use serde::de::DeserializeOwned;

use super::boot;
use super::figures::bytes;
use super::floor::Floor;
use super::limits::LIMIT;
use super::stages;
use super::tables::Tables;

const TRANSFERS: &str = "transfers";
const STAGES: &str = "stages";

const SIZES: [usize; 8] = [8, 64, 512, 4096, 16_384, 65_536, 262_144, 1 << 20];

/// Lengths with goals in host mode, whose stages are measured.
const STAGED: [usize; 2] = [4096, 1 << 20];

/// Bytes of streams between guests from which on the stages of single transfers tell something.
const STAGES_FROM: usize = 65_536;

/// One round of all sizes after the other; the process that writes measures the floor between them.
pub(super) fn host(rounds: usize, tables: &mut Tables) -> Result<()> {
    let nodes = HostNodes::start(2)?;
    let options = format!("--floor --rounds 1 --sizes {}", list(&SIZES));
    tables.rounds(rounds, "", false, |round| {
        for row in transfers_between(&nodes, &options)? {
            round.add_bench(TRANSFERS, &row.operation, bytes(row.size), &row);
        }
        for size in STAGED {
            stages::of_fresh_nics(&nodes, size, "--rounds 1", (STAGES, round))?;
        }
        Ok(())
    })
}

/// One round of all sizes after the other, the floor natively between them.
pub(super) fn vm(rounds: usize, tables: &mut Tables) -> Result<()> {
    let nodes = VmNodes::boot("bench", &["stable"; 2])?;
    let floor = Floor::new(2 << 20)?;
    let transfers =
        |rounds, size| transfers_between(&nodes, &format!("--rounds {rounds} --sizes {size}"));
    tables.rounds(rounds, "", false, |round| {
        // Stages of the smallest writes, one after the other: in a stream each waits for those before it.
        stages::around(&nodes, SIZES[0], (STAGES, round), || transfers(0, SIZES[0]))?;
        for size in SIZES {
            let before = floor.memcpy_mb_s(size);
            let rows = match size >= STAGES_FROM {
                true => stages::around(&nodes, size, (STAGES, round), || transfers(1, size))?,
                false => transfers(1, size)?,
            };
            let floor_mb_s = before.max(floor.memcpy_mb_s(size));
            for mut row in rows {
                row.memcpy_mb_s.push(floor_mb_s);
                round.add_bench(TRANSFERS, &row.operation, bytes(size), &row);
            }
        }
        Ok(())
    })?;
    nodes.end()?;
    boot::measure(rounds, tables)
}

/// Numbers for an option.
pub(super) fn list(numbers: &[usize]) -> String {
    let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
    numbers.join(",")
}

/// Measures between the first two nodes.
pub(super) fn transfers_between(nodes: &dyn Nodes, options: &str) -> Result<Vec<BenchRow>> {
    let target = nodes.start(1, "demo-target")?;
    let initiator = nodes.start(0, &format!("bench --peer 1 {options}"))?;
    rows_of(initiator, target)
}

/// What an initiator says, until it and its target have ended well.
pub(super) fn rows_of(
    initiator: Box<dyn Running>,
    mut target: Box<dyn Running>,
) -> Result<Vec<BenchRow>> {
    let rows = said(initiator, "the initiator")?;
    target.succeed("the target", LIMIT)?;
    Ok(rows)
}

/// What a program says, a value in each line, until it has ended well.
pub(super) fn said<T: DeserializeOwned>(
    mut program: Box<dyn Running>,
    name: &str,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    while let Some(line) = program.line(LIMIT).with_context(|| name.to_owned())? {
        all.push(serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?);
    }
    program.succeed(name, LIMIT)?;
    Ok(all)
}
