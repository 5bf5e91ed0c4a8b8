//! Why a machine cannot be made, removed or used.

use crate::limits::{COMMAND_SLOTS, MAX_MACHINES, MAX_RANKS};

/// What is wrong with a request about machines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The cluster has no machine of that name.
    #[error("there is no machine \"{name}\": {}", list(known))]
    NoSuchMachine {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The cluster has a machine of that name already.
    #[error("machine \"{0}\" exists already: use another name, or \"qnic machine rm {0}\"")]
    Exists(String),
    /// The cluster has as many machines as it can.
    #[error("there are {MAX_MACHINES} machines, which is all a cluster can have: remove one")]
    TooMany,
    /// No node was named.
    #[error("a machine needs at least one node")]
    NoNodes,
    /// A node was named twice.
    #[error("node {0} is named twice: a machine has a node once, and several ranks on it")]
    NodeTwice(String),
    /// A node has no NIC.
    #[error("node {0} has no NIC: a machine's processes reach each other by it")]
    NoNic(String),
    /// A node has no NIC of that name.
    #[error("node {node} has no NIC \"{nic}\": {}", names(known))]
    NoSuchNic {
        /// The node.
        node: String,
        /// What was asked for.
        nic: String,
        /// What it has.
        known: Vec<String>,
    },
    /// The NICs of two nodes are on different networks.
    #[error("the NICs of {} and {} are on different networks: name others with --nic", .0[0], .0[1])]
    Apart([String; 2]),
    /// Another machine has the node for itself.
    #[error("node {node} is held by machine \"{holder}\" exclusively")]
    Held {
        /// The node.
        node: String,
        /// The machine that has it.
        holder: String,
    },
    /// A machine was to have a node for itself that another one uses.
    #[error("node {node} cannot be exclusive: machine \"{holder}\" uses it")]
    Used {
        /// The node.
        node: String,
        /// The machine that uses it.
        holder: String,
    },
    /// A program runs on the machine.
    #[error("machine \"{name}\" runs a program (process {pid}): end that first")]
    Running {
        /// The machine.
        name: String,
        /// The process whose run it is.
        pid: u32,
    },
    /// As many programs run on machines of the cluster as can.
    #[error(
        "{0} programs run on machines of this cluster, which is all it can: wait for one to end"
    )]
    Busy(usize),
    /// A run was to have no ranks, or too many.
    #[error("expected 1 to {MAX_RANKS} ranks, found {0}")]
    Ranks(usize),
    /// More ranks than the guests can run commands.
    #[error(
        "{ranks} ranks are more than {nodes} nodes can run: each runs {COMMAND_SLOTS} commands at most"
    )]
    TooManyForNodes {
        /// The ranks that were asked for.
        ranks: usize,
        /// Nodes of the machine.
        nodes: usize,
    },
    /// A name that is no interface.
    #[error("there is no interface \"{0}\": qnic or pool")]
    NoSuchInterface(String),
}

fn names(known: &[String]) -> String {
    match known {
        [] => "its NIC has no name".to_owned(),
        _ => format!("it has {}", known.join(", ")),
    }
}

fn list(known: &[String]) -> String {
    match known {
        [] => "the cluster has none; make one with \"qnic machine create\"".to_owned(),
        _ => format!("the cluster has {}", known.join(", ")),
    }
}
