//! A run of a program on a machine: what each rank is told, and its command in a guest.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use super::placement::place;
use super::ports::RunSlot;
use super::records::{Machine, Machines};
use super::supervise::{supervise, Killer, Rank, RunEnd};
use crate::{
    Cancel, Cluster, Error, GuestCommand, GuestEvent, GuestInput, GuestProcess, Node, Result,
};

/// The number of SIGKILL in a guest.
const SIGKILL: u8 = 9;

/// A run on a machine, which has its ports until it is dropped. Each rank finds in its
/// environment:
///
/// | variable | what |
/// |---|---|
/// | `QNIC_MACHINE` | the machine's name |
/// | `QNIC_RANK`, `QNIC_SIZE` | its rank, from 0, and how many there are |
/// | `QNIC_MACHINE_NODES` | the numbers of the NICs of all ranks, in their order, with commas |
/// | `QNIC_MACHINE_INTERFACE` | `qnic` or `pool` |
/// | `QNIC_NIC` | the name of the machine's NIC, if it has chosen one |
/// | `QNIC_MACHINE_KEY` | 16 hexadecimal digits by chance, the same for all ranks of this run only |
/// | `QNIC_APPLICATION` | a name of the run, `run-` and 12 hexadecimal digits by chance |
/// | `QNIC_MACHINE_PORT` | the first datagram port of this run; rank r has the r-th from there |
pub struct MachineRun {
    machine: Machine,
    /// The node of each rank.
    nodes: Vec<Node>,
    /// The variables that all ranks share.
    shared: Vec<(&'static str, String)>,
    abandon: Cancel,
    _slot: RunSlot,
}

/// How a run ended.
#[derive(Debug)]
pub struct RunReport {
    /// The first reason.
    pub end: RunEnd,
    /// Ranks that were killed and have not ended: their guests do not answer. The helper ends
    /// them as soon as they do.
    pub left: Vec<usize>,
}

impl Cluster {
    /// Its parallel machines.
    pub fn machines(&self) -> Machines {
        Machines::new(&self.dir, self.spec())
    }

    /// Begins a run of so many ranks on a machine, or of one on each of its nodes.
    ///
    /// # Errors
    /// [`Error::Machine`]: there is no such machine, it cannot have so many ranks, or too many
    /// runs are under way.
    pub fn begin_machine_run(&self, name: &str, ranks: Option<usize>) -> Result<MachineRun> {
        let (machine, slot) = self.machines().begin_run(name)?;
        let placed = place(machine.nodes.len(), ranks)?;
        let abandon = Cancel::new().map_err(|error| Error::Host(error.to_string()))?;
        let (mut nodes, mut numbers) = (Vec::new(), Vec::new());
        for index in placed {
            let node = self.node(&machine.nodes[index])?;
            numbers.push(self.number(&machine.nic_of(node.name()))?);
            nodes.push(Node {
                cancel: Some(abandon.clone()),
                ..node.clone()
            });
        }
        let chance = (random()?, random()?);
        let shared = shared(&machine, &numbers, slot.ports().start, chance);
        Ok(MachineRun {
            machine,
            nodes,
            shared,
            abandon,
            _slot: slot,
        })
    }
}

impl MachineRun {
    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The names of the nodes of all ranks.
    pub fn nodes(&self) -> Vec<&str> {
        self.nodes.iter().map(Node::name).collect()
    }

    /// Copies a file of this machine to each node of the run, unless `cancel` is pulled.
    ///
    /// # Errors
    /// As [`Node::put`].
    pub fn put(&self, from: &Path, to: &Path, cancel: &Cancel) -> Result<()> {
        // The first ranks are on different nodes.
        let mut once = self.nodes.iter().take(self.machine.nodes.len());
        once.try_for_each(|node| {
            let node = Node {
                cancel: Some(cancel.clone()),
                ..node.clone()
            };
            node.put(from, to, &|_| {})
        })
    }

    /// Runs `command` as every rank. `show` is called with what each rank says, and with its end.
    /// The run ends early at the first failure, an error of `show`, a pull of `cancel`, or the end
    /// of the time. When this returns, no rank runs but those that the report names.
    ///
    /// # Errors
    /// Returns an error if this process has no descriptors left.
    pub fn run(
        self,
        command: &GuestCommand,
        cancel: &Cancel,
        limit: Option<Duration>,
        show: &mut dyn FnMut(usize, &GuestEvent) -> io::Result<()>,
    ) -> Result<RunReport> {
        let start = |rank: usize| {
            let process = self.nodes[rank].spawn(&self.command(command, rank))?;
            Ok(InGuest {
                input: process.input(),
                process,
            })
        };
        let abandon = || self.abandon.cancel();
        let ended = supervise(self.nodes.len(), &start, (cancel, &abandon), limit, show);
        let (end, left) = ended.map_err(|error| Error::Host(error.to_string()))?;
        Ok(RunReport { end, left })
    }

    fn command(&self, command: &GuestCommand, rank: usize) -> GuestCommand {
        let variables = self.shared.iter();
        let command = variables.fold(command.clone(), |command, (name, value)| {
            command.env(name, value)
        });
        command.env("QNIC_RANK", rank.to_string())
    }
}

/// The variables that all ranks share.
fn shared(
    machine: &Machine,
    numbers: &[u16],
    first_port: u16,
    (key, run): (u64, u64),
) -> Vec<(&'static str, String)> {
    let nodes: Vec<_> = numbers.iter().map(u16::to_string).collect();
    let nic = machine.nic.iter().map(|nic| ("QNIC_NIC", nic.clone()));
    let rest = [
        ("QNIC_MACHINE", machine.name.clone()),
        ("QNIC_SIZE", numbers.len().to_string()),
        ("QNIC_MACHINE_NODES", nodes.join(",")),
        ("QNIC_MACHINE_INTERFACE", machine.interface.to_string()),
        ("QNIC_MACHINE_KEY", format!("{key:016x}")),
        ("QNIC_MACHINE_PORT", first_port.to_string()),
        ("QNIC_APPLICATION", format!("run-{:012x}", run >> 16)),
    ];
    rest.into_iter().chain(nic).collect()
}

/// A number that no other run guesses.
fn random() -> Result<u64> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(Error::io("read", path))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A rank as a command in a guest.
struct InGuest {
    process: GuestProcess,
    input: GuestInput,
}

impl Rank for InGuest {
    fn killer(&self) -> Killer {
        let input = self.input.clone();
        // A guest that has gone has no process either.
        Box::new(move || drop(input.signal(SIGKILL)))
    }

    fn next(&mut self) -> Result<GuestEvent> {
        loop {
            if let Some(event) = self.process.next_event(None)? {
                return Ok(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Interface;
    use crate::manifest::Mode;
    use crate::testing::TestDir;

    fn machine() -> Machine {
        Machine {
            name: "lab".into(),
            nodes: vec!["a".into()],
            nic: None,
            interface: Interface::Pool,
            exclusive: false,
        }
    }

    #[test]
    fn ranks_are_told_what_they_share() {
        let shared = shared(&machine(), &[4, 2, 4], 2512, (0xab, 0xcd_0000));
        let lines: Vec<_> = shared.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let expected = [
            "QNIC_MACHINE=lab",
            "QNIC_SIZE=3",
            "QNIC_MACHINE_NODES=4,2,4",
            "QNIC_MACHINE_INTERFACE=pool",
            "QNIC_MACHINE_KEY=00000000000000ab",
            "QNIC_MACHINE_PORT=2512",
            "QNIC_APPLICATION=run-0000000000cd",
        ];
        assert_eq!(lines, expected);
        let on_disks = Machine {
            nic: Some("disks".into()),
            ..machine()
        };
        let shared = super::shared(&on_disks, &[4], 2512, (0, 0));
        assert!(shared.contains(&("QNIC_NIC", "disks".to_owned())));
    }

    #[test]
    fn runs_at_once_differ_in_ports_and_key_and_ranks_in_their_number() {
        let test = TestDir::new();
        let _owned = test.create(Mode::Attached).unwrap();
        let cluster = Cluster::open(&test.runtime, "c", None).unwrap();
        cluster.machines().create(machine()).unwrap();
        let one = cluster.begin_machine_run("lab", Some(3)).unwrap();
        let two = cluster.begin_machine_run("lab", None).unwrap();
        assert_eq!((one.nodes(), two.nodes()), (vec!["a"; 3], vec!["a"]));
        for name in ["QNIC_MACHINE_KEY", "QNIC_MACHINE_PORT", "QNIC_APPLICATION"] {
            let of = |run: &MachineRun| run.shared.iter().find(|(n, _)| *n == name).cloned();
            assert_ne!(of(&one), of(&two), "{name}");
        }
        let command = one.command(&GuestCommand::new("x"), 2);
        let rank = (b"QNIC_RANK".to_vec(), b"2".to_vec());
        assert!(command.start.env.contains(&rank) && command.start.env.len() == 8);
        let refused = cluster.begin_machine_run("lab", Some(0));
        assert!(matches!(refused, Err(Error::Machine(_))));
    }

    /// No guest runs: a rank cannot be started, which ends the run with its name.
    #[test]
    fn a_node_that_has_ended_is_named() {
        let test = TestDir::new();
        let _owned = test.create(Mode::Attached).unwrap();
        let cluster = Cluster::open(&test.runtime, "c", None).unwrap();
        cluster.machines().create(machine()).unwrap();
        let run = cluster.begin_machine_run("lab", None).unwrap();
        let cancel = Cancel::new().unwrap();
        let command = GuestCommand::new("true");
        let report = run.run(&command, &cancel, None, &mut |_, _| Ok(()));
        let RunEnd::Lost { rank: 0, error } = report.unwrap().end else {
            panic!("it ran");
        };
        assert!(error.to_string().contains("its QEMU has ended"), "{error}");
    }
}
