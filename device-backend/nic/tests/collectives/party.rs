//! What the stories start from: nets, processes that form a group, and their completions.

use qnic_abi::collective::Called;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::Status;
pub(crate) use qnic_nic::testing::{nets, status};
use qnic_nic::testing::{Net, Party};

/// Handle, status, and the process that is the reason.
pub(crate) type End = (u64, Status, (u16, u16));

/// The completions of a kind that have come.
#[track_caller]
pub(crate) fn ends(party: &Party, kind: CompletionKind) -> Vec<End> {
    let entries = party.completions_of(kind);
    let end = |entry: &CompletionEntry| {
        let who = (entry.node.get(), entry.port.get());
        (entry.handle.get(), status(entry), who)
    };
    entries.iter().map(end).collect()
}

#[track_caller]
pub(crate) fn called(party: &Party) -> Vec<End> {
    ends(party, CompletionKind::Collective)
}

/// What the reason has called, and what others have.
pub(crate) fn called_by(entry: &CompletionEntry) -> [Option<Called>; 2] {
    let labels = entry.mark.get();
    [
        Called::of_word(entry.tag.get(), labels as u16),
        Called::of_word(entry.immediate.get(), (labels >> 16) as u16),
    ]
}

/// A call that has ended well.
pub(crate) fn done(handle: u64) -> Vec<End> {
    vec![(handle, Status::Ok, (0, 0))]
}

pub(crate) fn name(party: &Party) -> (u16, u16) {
    (party.node as u16, party.port.0)
}

/// Two processes on each node but the last, which has one.
pub(crate) fn parties(net: &Net, nodes: usize) -> Vec<Party> {
    let places = (0..nodes).flat_map(|node| [(node, 1), (node, 2)]);
    let mut places: Vec<_> = places.collect();
    places.pop();
    let party = |(node, vni): &(usize, u16)| net.party(*node, *vni);
    places.iter().map(party).collect()
}

/// All of them form a group, the first at home; returns what each calls it.
#[track_caller]
pub(crate) fn form(net: &Net, members: &[Party], group: u64) -> Vec<u64> {
    let size = members.len() as u32;
    for (rank, member) in (0..).zip(members) {
        member.join(1, &members[0], group, (rank, size));
    }
    net.run();
    let joined = members.iter().map(|member| {
        let entries = member.completions();
        let entry = entries.first().expect("a completion");
        assert_eq!((entries.len(), status(entry)), (1, Status::Ok));
        assert_eq!(entry.kind, CompletionKind::Join as u8);
        assert_eq!(entry.length.get(), u64::from(size));
        entry.immediate.get()
    });
    joined.collect()
}

/// Polls so many NICs once.
pub(crate) fn poll_all(net: &Net, nodes: usize) {
    for node in 0..nodes {
        net.poll(node);
    }
}

#[track_caller]
pub(crate) fn assert_nothing_is_left(net: &Net) {
    let cluster = net.cluster();
    for node in &cluster.nodes {
        for budget in node.nic.budgets() {
            let ours = [
                "groups_of_process",
                "joins_of_peer",
                "bytes_of_group",
                "collectives_of_member",
                "multicasts_of_member",
                "group_frames_of_peer",
            ];
            assert!(
                !ours.contains(&budget.name) || budget.used == 0,
                "{budget:?}"
            );
        }
        assert!(node.driver.all_unlocked(&node.host));
    }
}
