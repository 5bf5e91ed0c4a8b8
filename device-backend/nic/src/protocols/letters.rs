//! The one way from a protocol to another: letters of groups go to the inboxes of their members.

use super::protocol::Context;
use super::Protocols;
use crate::env::Host;

impl Protocols {
    /// Gives processes the messages of their groups that have come, or that they had no room for.
    /// Returns true if there may have been any.
    #[inline]
    pub(super) fn deliver_letters<H: Host>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let has_any = self.collectives.has_mail() || self.messages.has_openings();
        if has_any {
            self.deliver(cx);
        }
        has_any
    }

    #[cold]
    fn deliver<H: Host>(&mut self, cx: &mut Context<'_, H>) {
        for group in self.collectives.take_ended() {
            self.messages.group_ended(cx, group);
        }
        let mut processes = self.collectives.take_arrived();
        processes.extend(self.messages.take_openings());
        for vni in processes {
            let messages = &mut self.messages;
            self.collectives
                .deliver(cx, vni, |cx, letter| messages.take(cx, vni, letter));
        }
    }
}
