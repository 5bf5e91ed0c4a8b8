//! Which rank runs on which node: round robin.

use crate::limits::MAX_RANKS;
use crate::machine_error::MachineError;
use crate::COMMAND_SLOTS;

/// For each rank the index of its node, among so many nodes. Without a number of ranks there is one
/// on each node.
///
/// # Errors
/// No rank, or more than [`MAX_RANKS`] or than the nodes can run.
pub(super) fn place(nodes: usize, ranks: Option<usize>) -> Result<Vec<usize>, MachineError> {
    let ranks = ranks.unwrap_or(nodes);
    if nodes == 0 {
        return Err(MachineError::NoNodes);
    }
    if !(1..=MAX_RANKS).contains(&ranks) {
        return Err(MachineError::Ranks(ranks));
    }
    if ranks.div_ceil(nodes) > COMMAND_SLOTS {
        return Err(MachineError::TooManyForNodes { ranks, nodes });
    }
    Ok((0..ranks).map(|rank| rank % nodes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_go_round_the_nodes() {
        assert_eq!(place(3, Some(7)), Ok(vec![0, 1, 2, 0, 1, 2, 0]));
        assert_eq!(place(3, None), Ok(vec![0, 1, 2]));
        assert_eq!(place(3, Some(2)), Ok(vec![0, 1]));
    }

    #[test]
    fn what_the_nodes_cannot_run_is_refused() {
        assert_eq!(place(2, Some(0)), Err(MachineError::Ranks(0)));
        let all = 2 * COMMAND_SLOTS;
        assert_eq!(place(2, Some(all)).map(|placed| placed.len()), Ok(all));
        let refused = place(2, Some(all + 1)).unwrap_err();
        let expected = MachineError::TooManyForNodes {
            ranks: all + 1,
            nodes: 2,
        };
        assert_eq!(refused, expected);
        let most = MAX_RANKS + 1;
        assert_eq!(place(most, Some(most)), Err(MachineError::Ranks(most)));
        assert_eq!(place(0, None), Err(MachineError::NoNodes));
    }
}
