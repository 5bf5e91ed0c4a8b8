//! Timers of connections.

use qnic_abi::stream::Reason;
use qnic_shared::timing::Time;

use super::table::{Alarm, Endpoint};
use crate::stream_protocol::address::{ConnectionId, Failure};
use crate::stream_protocol::buffer::{ReceivedFrame, SendFrame};
use crate::stream_protocol::connection::Stage;

impl<S: SendFrame, R: ReceivedFrame> Endpoint<S, R> {
    /// Does the work that is due. Call [`Endpoint::poll_transmit`] and [`Endpoint::poll_changed`] next.
    pub fn tick(&mut self, now: Time) {
        while let Some(alarm) = self.timers.pop_due(now) {
            match alarm {
                Alarm::Retransmit(id) => self.retransmit(now, id),
                Alarm::Ack(id) => self.acknowledge_late(id),
                Alarm::Silence(id) => self.look_for_silence(now, id),
            }
        }
    }

    fn acknowledge_late(&mut self, id: ConnectionId) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        connection.timers.ack = None;
        if connection.receiver.owes_ack() {
            connection.receiver.ack_immediately();
        }
        self.schedule(id);
    }

    /// Ensures that a timer runs while an answer is missing. It is not restarted with each
    /// frame: when it fires, it checks for how long the oldest frame has been under way.
    pub(crate) fn watch(&mut self, now: Time, id: ConnectionId) {
        let Some((connection, config)) = self.configured(id) else {
            return;
        };
        if connection.timers.retransmit.is_some() || connection.stage != Stage::Open {
            return;
        }
        let since = match connection.sender.oldest() {
            Some(at) => at.max(connection.progress_at),
            None if connection.sender.is_shut() => now,
            None => return,
        };
        let at = since.after(connection.timeout(config));
        self.arm(id, at, Alarm::Retransmit(id), |timers| {
            &mut timers.retransmit
        });
    }

    fn retransmit(&mut self, now: Time, id: ConnectionId) {
        let Some((connection, config)) = self.configured(id) else {
            return;
        };
        connection.timers.retransmit = None;
        let timeout = connection.timeout(config);
        match connection.stage {
            Stage::Opening | Stage::Accepting => {
                if connection.opened_at.after(config.open_timeout) <= now {
                    return self.fail(id, Failure::PeerLost);
                }
                connection.open_due = true;
                connection.round_trip.back_off();
                let at = now.after(connection.timeout(config));
                self.arm(id, at, Alarm::Retransmit(id), |timers| {
                    &mut timers.retransmit
                });
            }
            Stage::Open => match connection.sender.oldest() {
                Some(at) => {
                    let is_late = at.max(connection.progress_at).after(timeout) <= now;
                    if is_late && connection.sender.expire(now) {
                        // The next frame of the same age has its own timeout, however late this is.
                        connection.progress_at = now;
                        connection.round_trip.back_off();
                        let trip = connection.round_trip.typical();
                        connection.congestion.lost(now, trip);
                        self.counters.resend_timeouts += 1;
                    }
                }
                None if connection.sender.is_shut() => {
                    connection.probe_due = true;
                    connection.round_trip.back_off();
                }
                None => {}
            },
            Stage::Lingering | Stage::Failed(_) => {}
        }
        self.watch(now, id);
        self.schedule(id);
    }

    /// Asks a silent peer, gives it up, and ends connections that have lingered long enough.
    fn look_for_silence(&mut self, now: Time, id: ConnectionId) {
        let Some((connection, config)) = self.configured(id) else {
            return;
        };
        connection.timers.silence = None;
        let is_over = |since: Option<Time>| since.is_some_and(|at| at.after(config.linger) <= now);
        let silent_for = now.0.saturating_sub(connection.last_received.0);
        if connection.is_complete() {
            if is_over(connection.left_at) {
                return self.remove(id);
            }
        } else if is_over(connection.left_at) && connection.sender.is_done() {
            // The peer has all bytes, and goes on sending although the program does not read any more.
            return self.reset(id, Reason::Aborted);
        } else if silent_for >= config.peer_timeout {
            return self.fail(id, Failure::PeerLost);
        } else if silent_for >= config.keep_alive {
            connection.probe_due = true;
        }
        let wait = config.keep_alive.min(config.linger).max(1);
        self.arm(id, now.after(wait), Alarm::Silence(id), |timers| {
            &mut timers.silence
        });
        self.schedule(id);
    }

    /// A complete connection that the program has closed begins to linger.
    pub(crate) fn settle(&mut self, id: ConnectionId) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        let is_left = connection.left_at.is_some();
        if connection.stage == Stage::Open && is_left && connection.is_complete() {
            connection.stage = Stage::Lingering;
            self.lingering.push_back(id);
        }
    }
}
