//! What stories begin with, and what they look at in the end.

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::Status;

use super::{LossyWire, Net, Party};
use crate::Limits;

/// The wires that stories run on: two lossless ones, one of them with receipts, and so many rough ones.
pub fn nets(nodes: u16, rough: u64) -> impl Iterator<Item = Net> {
    nets_with(nodes, rough, Limits::default())
}

/// The same wires. Messages of several frames are not staged: they wait for their receives.
pub fn scarce_nets(nodes: u16, rough: u64) -> impl Iterator<Item = Net> {
    nets_with(nodes, rough, scarce())
}

/// Staging memory for short messages, and no long one.
pub fn scarce() -> Limits {
    Limits {
        staged_bytes: 8_000,
        ..Limits::default()
    }
}

fn nets_with(nodes: u16, rough: u64, limits: Limits) -> impl Iterator<Item = Net> {
    let lossless = [false, true].map(|receipts| {
        let net = Net::new(nodes, 1024, 8, &limits);
        net.cluster().receipts = receipts;
        net
    });
    let lossy = move |seed| {
        let net = Net::new(nodes, 2048, 8, &limits);
        net.cluster().set_lossy_wire(LossyWire::rough(100), seed);
        net
    };
    lossless.into_iter().chain((1..=rough).map(lossy))
}

/// What a completion says.
///
/// # Panics
/// If no status has that number.
#[track_caller]
pub fn status(entry: &CompletionEntry) -> Status {
    Status::try_from(entry.status.get()).expect("a known status")
}

impl Net {
    /// Lets so much time pass, in steps; polls each node so many times behind each.
    pub fn pass(&self, nanoseconds: u64, step: u64, polls: usize) {
        let end = self.cluster().now.after(nanoseconds);
        while self.cluster().now < end {
            self.advance(step);
            let nodes = self.cluster().nodes.len();
            for node in (0..nodes).flat_map(|node| std::iter::repeat_n(node, polls)) {
                self.poll(node);
            }
        }
    }

    /// What a node uses of the budget of that name.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn budget(&self, node: usize, name: &str) -> u64 {
        let budgets = self.cluster().nodes[node].nic.budgets();
        let budget = budgets.iter().find(|budget| budget.name == name);
        budget.expect("a budget of that name").used
    }
}

impl Party {
    /// The one completion that has come.
    ///
    /// # Panics
    /// If there is another number of them.
    #[track_caller]
    pub fn completion(&self) -> CompletionEntry {
        let entries = self.completions();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries[0]
    }

    /// Handle and status of each completion that has come.
    #[track_caller]
    pub fn ends(&self) -> Vec<(u64, Status)> {
        ends_of(&self.completions())
    }

    /// Handle and status of each message that it has sent; all completions tell of those.
    #[track_caller]
    pub fn sent(&self) -> Vec<(u64, Status)> {
        ends_of(&self.completions_of(CompletionKind::Send))
    }

    /// Handle and status of each receive that has ended; all completions tell of those.
    #[track_caller]
    pub fn received(&self) -> Vec<(u64, Status)> {
        ends_of(&self.completions_of(CompletionKind::Receive))
    }

    /// The completions that have come, all of them of a kind.
    ///
    /// # Panics
    /// If one is of another kind.
    #[track_caller]
    pub fn completions_of(&self, kind: CompletionKind) -> Vec<CompletionEntry> {
        let entries = self.completions();
        let right = entries.iter().all(|entry| entry.kind == kind as u8);
        assert!(right, "{entries:?}");
        entries
    }
}

fn ends_of(entries: &[CompletionEntry]) -> Vec<(u64, Status)> {
    let ends = entries.iter().map(|it| (it.handle.get(), status(it)));
    ends.collect()
}
