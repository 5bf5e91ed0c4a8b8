//! Notifications: never before the writes that they follow, none twice, none lost
//! (N16, N18).

use qnic_abi::host_area::SIGNAL_COUNTERS;

use super::transfer::{Kind, Op};
use super::Oracle;

/// One notifying write: its number, and whether it is sure to notify.
#[derive(Debug, Clone, Copy)]
pub(super) struct Notice {
    pub(super) id: u64,
    pub(super) sure: bool,
}

impl Oracle {
    /// The notification of this write may arrive or not.
    pub(super) fn drop_notice(&mut self, place: usize, op: &Op) {
        if let Kind::Write {
            notification: Some(notification),
            ..
        } = op.plan.kind
        {
            let key = (op.plan.target, op.life, notification);
            let notices = self.players[place].notices.get_mut(&key);
            let notices = notices.into_iter().flatten();
            for notice in notices.filter(|notice| notice.id == op.id) {
                notice.sure = false;
            }
        }
    }

    pub(super) fn signalled(&mut self, target: usize, notification: u32, count: u64) {
        assert!(notification < SIGNAL_COUNTERS);
        self.checked.notifications += 1;
        let life = self.players[target].life;
        let seen = self.players[target].signals.insert(notification, count);
        assert_eq!(
            seen.unwrap_or(0) + 1,
            count,
            "process {target}: signal counter {notification} jumps"
        );
        let sender = (notification.saturating_sub(1) / 2) as usize;
        assert!(
            notification > 0 && sender < self.players.len(),
            "process {target}: signal {notification} that nobody sends"
        );
        let key = (target, life, notification);
        let notices = self.players[sender].notices.get(&key);
        let notices = notices.map_or(&[][..], Vec::as_slice);
        assert!(
            count <= notices.len() as u64,
            "process {target}: notification {notification} of process {sender} arrives twice"
        );
        // Those that are sure to arrive come in their order; others may be missing.
        let open = &self.players[sender].ops;
        let sure = |notice: &&Notice| {
            let op = open.iter().find(|op| op.id == notice.id);
            notice.sure && op.is_none_or(Op::must_succeed)
        };
        let uncertain = notices.len() - notices.iter().filter(sure).count();
        let arrived = (count as usize).saturating_sub(uncertain);
        let Some(last) = notices.iter().filter(sure).take(arrived).last() else {
            return;
        };
        let node = self.players[target].node;
        for op in open {
            let earlier = op.id <= last.id && op.is_write() && op.must_succeed();
            if earlier && self.players[op.plan.target].node == node {
                assert!(
                    self.is_delivered(sender, op),
                    "process {target}: notification {notification} comes before command {}: {op:?}",
                    op.command
                );
            }
        }
    }

    /// Nothing is under way any more: what is sure to notify must have.
    pub(super) fn audit_notification(&self, target: usize, sender: usize, notification: u32) {
        let count = self.players[target].signals.get(&notification).copied();
        let key = (target, self.players[target].life, notification);
        let notices = self.players[sender].notices.get(&key);
        let sure = notices.map_or(0, |notices| notices.iter().filter(|n| n.sure).count());
        assert!(
            count.unwrap_or(0) >= sure as u64,
            "process {target}: notification {notification} of process {sender} is lost: \
             {count:?} of {sure}"
        );
    }
}
