//! `qnic machine run`: runs a program on a machine.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use qnic_cluster::{Cancel, Error, GuestExit, RunEnd, RunReport};
use qnic_trials::Program;

use super::output::Output;
use crate::run::{code_of, seconds, variable, TIMED_OUT, TOOL_FAILED};
use crate::ui::{self, ClusterOption};

/// Options of `qnic machine run`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic machine run lab -- sh -c 'echo $QNIC_RANK of $QNIC_SIZE'
  cargo qnic machine run lab -n 12 -- ./heat --size 1000
  cargo qnic machine run lab --json -- ./heat | jq -r 'select(.event == \"output\").line'

PROGRAM with a slash in it is a file of this machine, which is copied to the nodes;
guest:PATH is one of the guest's, and a plain name is looked up there. It finds in its
environment QNIC_MACHINE, QNIC_RANK, QNIC_SIZE, QNIC_MACHINE_NODES (the NIC number of each
rank), QNIC_MACHINE_INTERFACE, QNIC_MACHINE_KEY, QNIC_MACHINE_PORT, QNIC_APPLICATION (a name of
this run) and, of a machine with --nic, QNIC_NIC, which the library reads.

Ranks go round the nodes. Each line of output is preceded by its rank. The first rank
that fails is named, and ends the others; Ctrl-C, the timeout and the end of this command
by whatever means end all. With the program ends what is in its process group.

Exit status: 0 if all ranks returned 0; else the code of the first that failed. Besides:
  124      the time was over
  125      it could not be carried out: no such machine, a guest does not answer, …
  126      the program is there but cannot be executed
  127      there is no such program
  128 + n  signal n ended a rank
  130      interrupted")]
pub(super) struct Options {
    /// The machine
    name: String,
    /// How many ranks; one on each node without this
    #[arg(long, short = 'n', value_name = "COUNT")]
    ranks: Option<usize>,
    /// Kill the ranks after this many seconds
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Set a variable in the program's environment
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Print events as JSON, one a line, instead of what ranks say
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterOption,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let code = try_run(options).unwrap_or_else(|error| code_of(&error));
    Ok(ExitCode::from(code))
}

fn try_run(options: &Options) -> Result<u8> {
    let cancel = Cancel::on_signals()?;
    let program = Program::find(&options.program).map_err(anyhow::Error::msg)?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let run = cluster.begin_machine_run(&options.name, options.ranks)?;
    if let Some((from, to)) = program.copy() {
        run.put(from, to, &cancel)?;
    }
    let variables = options.env.iter();
    let command = variables.fold(program.command(), |command, (name, value)| {
        command.env(name, value)
    });
    let nodes: Vec<_> = run.nodes().into_iter().map(str::to_owned).collect();
    let mut output = Output::new(&run.nodes(), options.json);
    output.start(run.machine()).map_err(Error::Output)?;
    let mut show = |rank, event: &_| output.show(rank, event);
    let report = run.run(&command, &cancel, options.timeout, &mut show)?;
    let (status, reason) = outcome(&report, &nodes, options.timeout);
    if let Some(reason) = &reason {
        eprintln!("qnic: machine {}: {reason}", options.name);
    }
    for rank in report.left {
        let node = &nodes[rank];
        eprintln!(
            "qnic: rank {rank} (node {node}) has not ended: it does as soon as its guest goes on"
        );
    }
    output
        .end(status, reason.as_deref())
        .map_err(Error::Output)?;
    Ok(status)
}

/// The exit status for a report, and what is said about it.
fn outcome(report: &RunReport, nodes: &[String], limit: Option<Duration>) -> (u8, Option<String>) {
    let (status, reason) = match &report.end {
        RunEnd::Finished => return (0, None),
        RunEnd::Failed { rank, exit } => {
            let how = match exit {
                GuestExit::Code(code) => format!("returned {code}"),
                GuestExit::Signal(signal) => format!("was ended by signal {signal}"),
            };
            let reason = format!("rank {rank} (node {}) {how}", nodes[*rank]);
            (exit.code(), reason)
        }
        RunEnd::Lost { rank, error } => {
            let status = crate::run::status_of(error);
            (status, format!("rank {rank}: {error}"))
        }
        RunEnd::Interrupted => (ui::INTERRUPTED, "interrupted".to_owned()),
        RunEnd::TimedOut => {
            let seconds = limit.unwrap_or_default().as_secs_f32();
            (TIMED_OUT, format!("killed after {seconds} s"))
        }
        RunEnd::Output(error) => (TOOL_FAILED, format!("cannot write: {error}")),
        _ => (TOOL_FAILED, "it ended otherwise".to_owned()),
    };
    (status, Some(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(end: RunEnd) -> (u8, Option<String>) {
        let nodes = ["n0", "n1"].map(str::to_owned);
        let report = RunReport {
            end,
            left: Vec::new(),
        };
        outcome(&report, &nodes, Some(Duration::from_secs(2)))
    }

    #[test]
    fn the_rank_that_failed_is_named_with_its_code() {
        let failed = |exit| told(RunEnd::Failed { rank: 1, exit });
        let said = |text: &str| Some(text.to_owned());
        assert_eq!(told(RunEnd::Finished), (0, None));
        let code = failed(GuestExit::Code(7));
        assert_eq!(code, (7, said("rank 1 (node n1) returned 7")));
        let signal = failed(GuestExit::Signal(11));
        let expected = "rank 1 (node n1) was ended by signal 11";
        assert_eq!(signal, (139, said(expected)));
        assert_eq!(told(RunEnd::TimedOut), (124, said("killed after 2 s")));
        assert_eq!(told(RunEnd::Interrupted), (130, said("interrupted")));
        let error = Error::NotStarted {
            node: "n0".into(),
            errno: 2,
            message: "x: No such file".into(),
        };
        let lost = told(RunEnd::Lost { rank: 0, error });
        let expected = "rank 0: node n0: cannot start x: No such file";
        assert_eq!(lost, (127, said(expected)));
    }
}
