//! The parallel machine that this process is a part of (S7): its rank, and where the others are.
//!
//! `cargo qnic machine run` starts a program once for each rank, and tells each process by its
//! environment:
//!
//! | variable | says |
//! |---|---|
//! | [`NAME_VARIABLE`] | name of the machine |
//! | [`RANK_VARIABLE`] | rank of this process, from 0 |
//! | [`SIZE_VARIABLE`] | number of ranks, 1 to [`MAX_RANKS`] |
//! | [`NODES_VARIABLE`] | node number of each rank: `0,1,2,0` |
//! | [`INTERFACE_VARIABLE`] | `qnic` or `pool` |
//! | [`KEY_VARIABLE`] | 16 hexadecimal digits, others in each run |
//! | [`PORT_VARIABLE`] | first port: rank r has this port plus r |
//! | [`APPLICATION_VARIABLE`] | name of the application or the run ([`Place`]) |
//!
//! ```no_run
//! use qnic::machine::Machine;
//!
//! # fn main() -> qnic::Result<()> {
//! let machine = Machine::from_environment()?;
//! println!("rank {} of {}, on {}", machine.rank(), machine.size(), machine.node_of(machine.rank()));
//! # Ok(())
//! # }
//! ```

use std::ffi::OsString;
use std::fmt;

use qnic_abi::NodeId;

use crate::error::{Error, Result};

/// Environment variable with the name of the machine.
pub const NAME_VARIABLE: &str = "QNIC_MACHINE";
/// Environment variable with the rank of this process.
pub const RANK_VARIABLE: &str = "QNIC_RANK";
/// Environment variable with the number of ranks.
pub const SIZE_VARIABLE: &str = "QNIC_SIZE";
/// Environment variable with the node numbers of all ranks.
pub const NODES_VARIABLE: &str = "QNIC_MACHINE_NODES";
/// Environment variable with the interface.
pub const INTERFACE_VARIABLE: &str = "QNIC_MACHINE_INTERFACE";
/// Environment variable with the key of the run.
pub const KEY_VARIABLE: &str = "QNIC_MACHINE_KEY";
/// Environment variable with the name of the application ([`Place`]).
pub const APPLICATION_VARIABLE: &str = "QNIC_APPLICATION";
/// Environment variable with the port of rank 0.
pub const PORT_VARIABLE: &str = "QNIC_MACHINE_PORT";

/// Most ranks of a machine.
pub const MAX_RANKS: u32 = 256;

/// Lowest port of a rank: those below are not for programs that ask for pools.
const LOWEST_PORT: u16 = 1024;

/// By what the ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Interface {
    /// Registers of the NIC in the process: messages, moved by the NICs.
    Qnic,
    /// Shared pools, driven by the kernel: streams.
    Pool,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Interface::Qnic => "qnic",
            Interface::Pool => "pool",
        })
    }
}

/// A parallel machine, as one of its ranks sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    name: String,
    rank: u32,
    nodes: Vec<NodeId>,
    interface: Interface,
    key: u64,
    port: u16,
}

/// The place of a process in its application, as a launcher says it (Q14): rank
/// [`RANK_VARIABLE`] of the [`SIZE_VARIABLE`] processes of the application
/// [`APPLICATION_VARIABLE`]. An endpoint that is [registered](crate::Nic::register) has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    application: String,
    rank: u32,
    size: u32,
}

impl Place {
    /// Process `rank` of the `size` ones of an application.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::Setting`]: the rank is not below the size.
    pub fn new(application: &str, rank: u32, size: u32) -> Result<Self> {
        crate::names::checked(application, rank)?;
        if rank >= size {
            return Err(wrong(RANK_VARIABLE, rank, "a rank below the size"));
        }
        Ok(Place {
            application: application.to_owned(),
            rank,
            size,
        })
    }

    /// What the environment says; `None` unless it names application, rank and size.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::Setting`]
    pub fn from_environment() -> Result<Option<Self>> {
        Self::from_variables(std::env::var_os)
    }

    fn from_variables(get: impl Fn(&'static str) -> Option<OsString>) -> Result<Option<Self>> {
        let text = |variable| Some(get(variable)?.to_string_lossy().into_owned());
        let numbers = text(RANK_VARIABLE).zip(text(SIZE_VARIABLE));
        let Some((application, (rank, size))) = text(APPLICATION_VARIABLE).zip(numbers) else {
            return Ok(None);
        };
        let rank = parse(RANK_VARIABLE, rank, "a rank", number)?;
        let size = parse(SIZE_VARIABLE, size, "a number of ranks", number)?;
        Self::new(&application, rank, size).map(Some)
    }

    /// Name of the application.
    pub fn application(&self) -> &str {
        &self.application
    }

    /// The number of this process, below the size.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many processes the application has.
    pub fn size(&self) -> u32 {
        self.size
    }
}

impl Machine {
    /// What the environment says.
    ///
    /// # Errors
    /// [`Error::NoMachine`] for a variable that is not set, [`Error::Setting`] for one that is
    /// not valid.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(std::env::var_os)
    }

    /// A machine that was made otherwise: rank `rank` of as many as there are nodes, the first of
    /// them on `port`.
    ///
    /// # Errors
    /// [`Error::Setting`]: as of the environment variable with the same meaning.
    pub fn new(rank: u32, nodes: &[NodeId], interface: Interface, port: u16) -> Result<Self> {
        let machine = Machine {
            name: String::new(),
            rank,
            nodes: nodes.to_vec(),
            interface,
            key: 0,
            port,
        };
        machine.checked()
    }

    /// The same with another key.
    #[must_use]
    pub fn with_key(self, key: u64) -> Self {
        Machine { key, ..self }
    }

    fn from_variables(get: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let text = |variable| match get(variable) {
            None => Err(Error::NoMachine(variable)),
            Some(value) => Ok(value.to_string_lossy().into_owned()),
        };
        let name = text(NAME_VARIABLE)?;
        let rank = parse(RANK_VARIABLE, text(RANK_VARIABLE)?, "a rank", number)?;
        let expected = "a number of ranks from 1 to 256";
        let size: u32 = parse(SIZE_VARIABLE, text(SIZE_VARIABLE)?, expected, |text| {
            number(text).filter(|size| (1..=MAX_RANKS).contains(size))
        })?;
        let expected = "a node number for each rank, such as 0,1,2,0";
        let nodes = parse(NODES_VARIABLE, text(NODES_VARIABLE)?, expected, |text| {
            // One more than there may be shows that there are too many.
            let nodes = text.split(',').take(size as usize + 1);
            let nodes: Option<Vec<_>> = nodes.map(|node| number(node).map(NodeId)).collect();
            nodes.filter(|nodes| nodes.len() == size as usize)
        })?;
        let interface = text(INTERFACE_VARIABLE)?;
        let interface = parse(INTERFACE_VARIABLE, interface, "qnic or pool", |text| {
            let all = [Interface::Qnic, Interface::Pool];
            all.into_iter().find(|it| it.to_string() == text)
        })?;
        let expected = "16 hexadecimal digits";
        let key = parse(KEY_VARIABLE, text(KEY_VARIABLE)?, expected, |text| {
            let plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            u64::from_str_radix(text, 16).ok().filter(|_| plain)
        })?;
        let port = parse(PORT_VARIABLE, text(PORT_VARIABLE)?, "a port", number)?;
        let machine = Machine {
            name,
            rank,
            nodes,
            interface,
            key,
            port,
        };
        machine.checked()
    }

    /// Returns an error unless rank, size and ports fit together.
    fn checked(self) -> Result<Self> {
        let size = self.nodes.len();
        if !(1..=MAX_RANKS as usize).contains(&size) {
            let expected = "a number of ranks from 1 to 256";
            return Err(wrong(SIZE_VARIABLE, size, expected));
        }
        if self.rank as usize >= size {
            return Err(wrong(RANK_VARIABLE, self.rank, "a rank below the size"));
        }
        let last = usize::from(self.port) + size - 1;
        if self.port < LOWEST_PORT || last > usize::from(u16::MAX) {
            let expected = "a port from 1024 up, with as many above it as there are ranks";
            return Err(wrong(PORT_VARIABLE, self.port, expected));
        }
        Ok(self)
    }

    /// Its name; empty if it was made without one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rank of this process, below the size.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The node of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn node_of(&self, rank: u32) -> NodeId {
        self.nodes[rank as usize]
    }

    /// The port of a rank. The ranks of this machine are below its size.
    pub fn port_of(&self, rank: u32) -> u16 {
        self.port.saturating_add(rank.min(MAX_RANKS) as u16)
    }

    /// By what the ranks reach each other.
    pub fn interface(&self) -> Interface {
        self.interface
    }

    /// The secret of the run: ranks of other runs are not let in.
    pub fn key(&self) -> u64 {
        self.key
    }
}

/// Digits only: a sign is none.
fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

fn parse<T>(
    variable: &'static str,
    value: String,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T> {
    parse(&value).ok_or_else(|| wrong(variable, value, expected))
}

fn wrong(variable: &'static str, value: impl ToString, expected: &'static str) -> Error {
    let value = value.to_string();
    Error::Setting {
        variable,
        value,
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 7] = [
        (NAME_VARIABLE, "lab"),
        (RANK_VARIABLE, "3"),
        (SIZE_VARIABLE, "4"),
        (NODES_VARIABLE, "0,1,2,0"),
        (INTERFACE_VARIABLE, "pool"),
        (KEY_VARIABLE, "00ff00ff00ff00FF"),
        (PORT_VARIABLE, "20000"),
    ];

    /// The environment of a run in which one variable has another value, or is not set.
    fn read(changed: &str, value: Option<&str>) -> Result<Machine> {
        Machine::from_variables(|variable| {
            let good = GOOD.iter().find(|(name, _)| *name == variable)?.1;
            let value = if variable == changed {
                value
            } else {
                Some(good)
            };
            value.map(OsString::from)
        })
    }

    #[test]
    fn the_environment_says_which_rank_this_is() {
        let machine = read("", None).unwrap();
        assert_eq!(
            (machine.name(), machine.rank(), machine.size()),
            ("lab", 3, 4)
        );
        assert_eq!(machine.node_of(2), NodeId(2));
        assert_eq!(machine.port_of(3), 20_003);
        assert_eq!(machine.interface(), Interface::Pool);
        assert_eq!(machine.key(), 0x00ff_00ff_00ff_00ff);
    }

    #[test]
    fn a_place_needs_application_rank_and_size() {
        let read = |values: [Option<&str>; 3]| {
            let names = [APPLICATION_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE];
            let index = |variable| names.iter().position(|name| *name == variable);
            Place::from_variables(|variable| values[index(variable)?].map(OsString::from))
        };
        let place = read([Some("solver"), Some("2"), Some("3")]).unwrap();
        assert_eq!(place, Some(Place::new("solver", 2, 3).unwrap()));
        for missing in 0..3 {
            let mut values = [Some("solver"), Some("2"), Some("3")];
            values[missing] = None;
            assert_eq!(read(values).unwrap(), None);
        }
        for wrong in [["solver", "3", "3"], ["solver", "x", "3"], ["", "0", "1"]] {
            assert!(read(wrong.map(Some)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (variable, _) in GOOD {
            let error = read(variable, None).unwrap_err();
            assert!(
                matches!(error, Error::NoMachine(name) if name == variable),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_malformed_is_named_with_its_value() {
        let wrong = [
            (RANK_VARIABLE, ["4", "-1", "+1", "", "one"]),
            (SIZE_VARIABLE, ["0", "257", "3", "", "4 "]),
            (
                NODES_VARIABLE,
                ["", "0,1,2", "0,1,2,0,0", "0,1,2,x", "0,1,2,65536"],
            ),
            (
                INTERFACE_VARIABLE,
                ["", "tcp", "Pool", "qnic ", "pool,qnic"],
            ),
            (
                KEY_VARIABLE,
                [
                    "",
                    "ff",
                    "+0ff00ff00ff00ff",
                    "00ff00ff00ff00fg",
                    "0x00ff00ff00ff00",
                ],
            ),
            (PORT_VARIABLE, ["0", "1023", "65533", "65536", "-5"]),
        ];
        for (variable, values) in wrong {
            for value in values {
                match read(variable, Some(value)).unwrap_err() {
                    Error::Setting {
                        variable: named,
                        value: said,
                        ..
                    } => {
                        // A size that does not fit the nodes is said of the nodes.
                        let named = (named, said.as_str());
                        let of_nodes = (NODES_VARIABLE, "0,1,2,0");
                        assert!(named == (variable, value) || named == of_nodes, "{named:?}");
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }
}
