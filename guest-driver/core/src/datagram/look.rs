//! A thread that waits looks at the NIC itself for a while, which then sends no wake events.
//!
//! ```text
//!   undisturbed:  take the wake request back ─► look, serve, look … ─► ask for wake events again
//!                                               until there is what the thread waits for, the
//!                                               time is over, or others want the processor
//! ```
//! An interrupt costs an emulated guest many times what a message does. Nobody waits for the
//! thread: it has the processor all the time that no events come, and serves every port.

use alloc::sync::Arc;

use super::port::Engine;
use crate::platform::{Lock, Platform};

impl<P: Platform> Engine<P> {
    /// Looks until `ready`, for `limit_ns` at most; at least once. The NIC is asked for a wake event
    /// before this returns, so an event that `ready` did not see is served as any other.
    pub(super) fn look(self: &Arc<Self>, ready: &dyn Fn() -> bool, limit_ns: u64) {
        let platform = &self.device.platform;
        let end = platform.now_ns().saturating_add(limit_ns);
        platform.undisturbed(&mut || {
            self.state.with(|state| {
                state.lookers += 1;
                if self.device.is_attached() {
                    state.queues.disarm(&self.window());
                }
            });
            loop {
                let has_work = self
                    .state
                    .with(|state| state.again || state.queues.has_completion(self.area()));
                if has_work {
                    self.serve();
                }
                if ready() || !platform.may_look() || platform.now_ns() >= end {
                    break;
                }
            }
            let now = platform.now_ns();
            self.state.with(|state| {
                state.lookers -= 1;
                if state.lookers == 0 {
                    state.rest(self, now);
                }
            });
        });
    }
}
