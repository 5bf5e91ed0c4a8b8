//! Polling: a thread that waits, and service while the processor has nothing else to do, look at the
//! NIC for a while. Meanwhile the NIC sends no wake events.
//!
//! ```text
//!   undisturbed:  take the wake request back ─► look, serve, look … ─► ask for wake events again
//!                                               until the thread has what it waits for, the
//!                                               time is over, or other tasks want the processor
//! ```
//! An interrupt costs an emulated guest many times what a message does. No other task is delayed by a
//! polling thread: it keeps the processor while no events come, and serves every port.
//!
//! | what polls | how long |
//! |---|---|
//! | a thread that waits ([`Engine::look`]) | what it asks for |
//! | service after a wake event, if the processor would halt | [`LOOK_ON_NS`] after the last packet, [`LONGEST_NS`] in all |
//! | service for a thread that waits for the answer ([`Engine::look_on`]) | until a packet has come, [`LOOK_ON_NS`] at most |

use alloc::sync::Arc;

use super::engine::{LookOn, LOOK_ON_NS};
use super::port::Engine;
use crate::platform::{Lock, Platform, Spare};

/// How long service polls in all, in nanoseconds. If more packets come, an event begins it anew.
const LONGEST_NS: u64 = 2_000_000;

impl<P: Platform> Engine<P> {
    /// Polls until `ready`, for `limit_ns` at most; at least once. The NIC is asked for a wake event
    /// before this returns, so an event that `ready` did not see is served as usual.
    pub(super) fn look(self: &Arc<Self>, ready: &dyn Fn() -> bool, limit_ns: u64) {
        let platform = &self.device.platform;
        let end = platform.now_ns().saturating_add(limit_ns);
        self.look_while(&mut || !ready() && platform.may_look() && platform.now_ns() < end);
    }

    /// A thread has sent a request, and is about to wait for the answer: the next service polls
    /// for it. Atomic.
    pub(super) fn look_on(&self) {
        let now = self.device.platform.now_ns();
        self.state
            .with(|state| state.look_on_until(LookOn::Thread, now));
    }

    /// Goes on polling if there is a reason that is recent, and the processor has nothing else to do.
    pub(super) fn look_on_if_spare(self: &Arc<Self>) {
        let Some((reason, mut until)) = self.state.with(|state| state.look_on.take()) else {
            return;
        };
        let platform = &self.device.platform;
        let is_spare = || match platform.spare() {
            Spare::Work => false,
            Spare::Thread => reason == LookOn::Thread,
            Spare::Halt => true,
        };
        let start = platform.now_ns();
        if start >= until || !is_spare() {
            return;
        }
        let end = start.saturating_add(LONGEST_NS);
        let mut received = self.counters.messages_received.get();
        self.look_while(&mut || {
            let now = platform.now_ns();
            let before = core::mem::replace(&mut received, self.counters.messages_received.get());
            if received != before {
                until = match reason {
                    LookOn::Thread => now,
                    LookOn::Event => end.min(now.saturating_add(LOOK_ON_NS)),
                };
            }
            now < until && is_spare()
        });
    }

    /// Polls at least once, then as long as `goes_on` returns true.
    fn look_while(self: &Arc<Self>, goes_on: &mut dyn FnMut() -> bool) {
        let platform = &self.device.platform;
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
                if !goes_on() {
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
