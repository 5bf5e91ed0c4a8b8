//! `qnic machine`: parallel machines of a running cluster (S7).

mod output;
mod run;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use qnic_cluster::{Interface, Machine, MachineOverview};

use crate::ui::{self, ClusterOption};

/// Options of `qnic machine`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic machine create lab --nodes n0,n1,n2
  cargo qnic machine create mine --nodes n3,n4 --interface pool --exclusive
  cargo qnic machine create other --nodes n3,n4 --nic disks
  cargo qnic machine ls
  cargo qnic machine run lab -n 12 -- ./heat --size 1000
  cargo qnic machine rm lab

A machine is some nodes of a running cluster, in an order, the NIC by which its programs
reach each other, and the interface that they use. Machines may share nodes; those of an exclusive one belong to no other.
They end with their cluster.

Exit status: 0 when done, 1 on an error, 2 for a wrong command line; for that of \"run\"
see its help.")]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Form a machine of nodes
    Create {
        /// Its name: a-z, 0-9, "-"
        name: String,
        /// Its nodes, in the order in which ranks go round them
        #[arg(long, value_delimiter = ',', required = true, value_name = "NODE,…")]
        nodes: Vec<String>,
        /// The name of the NIC by which its programs reach each other; the first of each node
        /// without this
        #[arg(long, value_name = "NAME")]
        nic: Option<String>,
        /// What its programs use: qnic (the process drives the NIC) or pool (the kernel does)
        #[arg(long, default_value_t)]
        interface: Interface,
        /// Let no other machine have these nodes
        #[arg(long)]
        exclusive: bool,
        #[command(flatten)]
        cluster: ClusterOption,
    },
    /// List the machines, and the processes that run programs on them
    Ls {
        /// Print a JSON array of machines
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        cluster: ClusterOption,
    },
    /// Run a program on a machine
    Run(run::Options),
    /// Remove a machine on which nothing runs
    Rm {
        /// Its name
        name: String,
        #[command(flatten)]
        cluster: ClusterOption,
    },
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match &options.action {
        Action::Create {
            name,
            nodes,
            nic,
            interface,
            exclusive,
            cluster,
        } => {
            let machine = Machine {
                name: name.clone(),
                nodes: nodes.clone(),
                nic: nic.clone(),
                interface: *interface,
                exclusive: *exclusive,
            };
            cluster.find(None)?.machines().create(machine)?;
            println!("{name}: {}", nodes.join(", "));
        }
        Action::Ls { json, cluster } => {
            let machines = cluster.find(None)?.machines().list()?;
            ui::show(*json, &machines[..], table)?;
        }
        Action::Run(options) => return run::run(options),
        Action::Rm { name, cluster } => {
            cluster.find(None)?.machines().remove(name)?;
            println!("{name}: removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(machines: &[MachineOverview]) -> String {
    let head = ["MACHINE", "NODES", "NIC", "INTERFACE", "EXCLUSIVE", "RUNS"];
    let mut rows = vec![head.map(str::to_owned)];
    for MachineOverview { machine, runs } in machines {
        let runs: Vec<_> = runs.iter().map(u32::to_string).collect();
        let exclusive = if machine.exclusive { "yes" } else { "no" };
        rows.push([
            machine.name.clone(),
            machine.nodes.join(","),
            machine.nic.clone().unwrap_or("-".to_owned()),
            machine.interface.to_string(),
            exclusive.to_owned(),
            match runs[..] {
                [] => "-".to_owned(),
                _ => runs.join(","),
            },
        ]);
    }
    ui::aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_listed_with_their_runs() {
        let machine = |name: &str, exclusive: bool| Machine {
            name: name.into(),
            nodes: vec!["n0".into(), "n1".into()],
            nic: (!exclusive).then(|| "disks".into()),
            interface: Interface::Pool,
            exclusive,
        };
        let shown = table(&[
            MachineOverview {
                machine: machine("lab", false),
                runs: vec![7, 8],
            },
            MachineOverview {
                machine: machine("mine", true),
                runs: Vec::new(),
            },
        ]);
        let expected = "\
MACHINE  NODES  NIC    INTERFACE  EXCLUSIVE  RUNS
lab      n0,n1  disks  pool       no         7,8
mine     n0,n1  -      pool       yes        -
";
        assert_eq!(shown, expected);
    }
}
