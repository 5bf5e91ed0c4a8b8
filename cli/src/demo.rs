//! `qnic demo`: the main job. Two nodes, an application on each; one exports
//! memory and is written to, read from and notified by the other, every byte
//! verified by checksum at the far side.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::Args;
use qnic_apps::report::{DemoLine, DemoRow, Latency};
use qnic_cluster::DEMO;
use qnic_trials::nodes::host::{DevicePlan, HostNodes};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;

/// Options of `qnic demo`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic demo                 two virtual machines with stock kernels
  cargo qnic demo --host          the same without virtual machines, in seconds
  cargo qnic demo --json          one JSON object on standard output

Exit status: 0 if every byte was right, 1 if not, 2 for a wrong command line.")]
pub(crate) struct Options {
    /// Run on two processes of this machine instead of two virtual machines
    #[arg(long)]
    host: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Kernel of the guests: stable or backports
    #[arg(long, default_value = "stable", conflicts_with = "host")]
    kernel: String,
}

const SIZES: &str = "1,8,64,96,97,512,4096,65536,1048576,16777216";

/// Longest time for the next line of an application.
const LINE_LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let start = Instant::now();
    let (mode, what) = match options.host {
        true => ("host", "two processes"),
        false => ("vm", "two guests with stock kernels"),
    };
    let nodes: Box<dyn Nodes> = match options.host {
        true => Box::new(HostNodes::start_program(DEMO, &[DevicePlan::alone(2, "")])?),
        false => Box::new(VmNodes::boot_program(
            DEMO,
            "demo",
            &[options.kernel.as_str(); 2],
        )?),
    };
    let ready = start.elapsed().as_secs_f64();
    if !options.json {
        println!("{what} and the device process: ready after {ready:.1} s");
    }
    let rows = transfer(nodes.as_ref(), !options.json)?;
    let wrong = rows.iter().filter(|row| !is_right(row)).count();
    let total = start.elapsed().as_secs_f64();
    if options.json {
        let object = serde_json::json!({
            "mode": mode,
            "ready_seconds": ready,
            "total_seconds": total,
            "wrong": wrong,
            "rows": rows,
        });
        println!("{object}");
    } else {
        println!(
            "\n{} transfers verified at both ends, {wrong} wrong; nodes ready after {ready:.1} s, done after {total:.1} s",
            2 * rows.len()
        );
    }
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

/// Starts both applications and, if `shown`, prints each row as it comes.
fn transfer(nodes: &dyn Nodes, shown: bool) -> Result<Vec<DemoRow>> {
    let mut target = nodes.start(1, "demo-target")?;
    let mut initiator = nodes.start(0, &format!("demo-initiator --peer 1 --sizes {SIZES}"))?;
    let mut rows = Vec::new();
    let mut ended = false;
    while let Some(line) = initiator.line(LINE_LIMIT).context("the initiator")? {
        let line = serde_json::from_str(&line).with_context(|| format!("line {line:?}"))?;
        match line {
            DemoLine::Connected {
                node,
                port,
                max_payload,
            } => {
                if shown {
                    print_head(node, port, max_payload);
                }
            }
            DemoLine::Row(row) => {
                if shown {
                    print_row(&row);
                }
                rows.push(row);
            }
            DemoLine::End(_) => ended = true,
        }
    }
    let status = initiator.wait(LINE_LIMIT)?;
    let served = target.wait(LINE_LIMIT).context("the target")?;
    let all_right = rows.iter().all(is_right);
    if !ended || served.status != 0 || (status.status != 0 && all_right) {
        bail!(
            "the demo was not completed: initiator, status {}: {}\ntarget, status {}: {}",
            status.status,
            status.errors.trim(),
            served.status,
            served.errors.trim()
        );
    }
    Ok(rows)
}

fn is_right(row: &DemoRow) -> bool {
    row.write_ok && row.read_ok
}

fn print_head(node: u16, port: u16, max_payload: u32) {
    println!(
        "node 0 has imported the segments of node {node}, port {port}; \
         a frame carries up to {max_payload} bytes\n"
    );
    println!(
        "{:>9}  {:<9} {:>7} {:>7} {:>12} {:>12} {:>12} {:>12}",
        "bytes", "alignment", "write", "read", "latency µs", "99 % µs", "write MB/s", "read MB/s"
    );
}

fn print_row(row: &DemoRow) {
    let verdict = |ok| if ok { "right" } else { "WRONG" };
    let time = |pick: fn(&Latency) -> f64| {
        let latency = row.latency.as_ref();
        latency.map_or_else(|| "-".into(), |latency| format!("{:.1}", pick(latency)))
    };
    println!(
        "{:>9}  {:<9} {:>7} {:>7} {:>12} {:>12} {:>12.1} {:>12.1}",
        row.size,
        if row.aligned { "page" } else { "none" },
        verdict(row.write_ok),
        verdict(row.read_ok),
        time(|latency| latency.median_us),
        time(|latency| latency.p99_us),
        row.write_mb_s,
        row.read_mb_s
    );
}
