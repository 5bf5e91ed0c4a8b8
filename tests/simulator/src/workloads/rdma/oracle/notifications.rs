//! Notifications: never before the writes that they follow, none twice, none lost
//! (N16, N18).

use qnic_abi::host_area::SIGNAL_COUNTERS;

use super::transfer::Op;
use super::RdmaOracle;

/// One notifying write: its number, and whether it is certain to notify.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedNotification {
    pub(super) id: u64,
    pub(super) certain: bool,
}

impl RdmaOracle {
    /// The notification of this write may arrive or not.
    pub(super) fn drop_notification(&mut self, slot: usize, op: &Op) {
        if let Some(notification) = op.plan.kind.notification() {
            let key = (op.plan.target, op.incarnation, notification);
            let notifications = self.processes[slot].notifications.get_mut(&key);
            let notifications = notifications.into_iter().flatten();
            for notification in notifications.filter(|notification| notification.id == op.plan.id) {
                notification.certain = false;
            }
        }
    }

    pub(super) fn signalled(&mut self, target: usize, notification: u32, count: u64) {
        assert!(notification < SIGNAL_COUNTERS);
        self.checked.notifications += 1;
        let incarnation = self.processes[target].watched.incarnation;
        let seen = self.processes[target].signals.insert(notification, count);
        assert_eq!(
            seen.unwrap_or(0) + 1,
            count,
            "process {target}: signal counter {notification} jumps"
        );
        let sender = (notification.saturating_sub(1) / 2) as usize;
        assert!(
            notification > 0 && sender < self.processes.len(),
            "process {target}: signal {notification} that no process sends"
        );
        let key = (target, incarnation, notification);
        let notifications = self.processes[sender].notifications.get(&key);
        let notifications = notifications.map_or(&[][..], Vec::as_slice);
        assert!(
            count <= notifications.len() as u64,
            "process {target}: notification {notification} of process {sender} arrives twice"
        );
        // Those that are certain to arrive come in their order; others may be missing.
        let open = &self.processes[sender].ops;
        let certain = |notification: &&ExpectedNotification| {
            let op = open.iter().find(|op| op.plan.id == notification.id);
            notification.certain && op.is_none_or(Op::must_succeed)
        };
        let uncertain = notifications.len() - notifications.iter().filter(certain).count();
        let arrived = (count as usize).saturating_sub(uncertain);
        let Some(last) = notifications.iter().filter(certain).take(arrived).last() else {
            return;
        };
        let node = self.processes[target].watched.node;
        for op in open {
            let earlier = op.plan.id <= last.id && op.is_write() && op.must_succeed();
            if earlier && self.processes[op.plan.target].watched.node == node {
                assert!(
                    self.is_delivered(sender, op),
                    "process {target}: notification {notification} comes before command {}: {op:?}",
                    op.command
                );
            }
        }
    }

    /// Nothing is under way any more: what is certain to notify must have done so.
    pub(super) fn audit_notification(&self, target: usize, sender: usize, notification: u32) {
        let count = self.processes[target].signals.get(&notification).copied();
        let key = (
            target,
            self.processes[target].watched.incarnation,
            notification,
        );
        let notifications = self.processes[sender].notifications.get(&key);
        let notifications = notifications.into_iter().flatten();
        let certain = notifications.filter(|n| n.certain).count();
        assert!(
            count.unwrap_or(0) >= certain as u64,
            "process {target}: notification {notification} of process {sender} is lost: \
             {count:?} of {certain}"
        );
    }
}
