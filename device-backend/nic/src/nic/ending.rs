//! What ends with a process, its queue, a segment, a peer or a process of a peer.

use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, AWAKE, COMMAND_ENTRIES};
use qnic_abi::{Port, SegmentId, SharedMemory, Status, VniId};

use super::Nic;
use crate::core::{PageKey, Pending, Waiter};
use crate::env::{Host, HostMemory, Time, Wire};
use crate::ids::PeerIndex;
use crate::protocols::{self, Ended, News};
use crate::transport::RETRY_AFTER;

impl Nic {
    /// Tells all peers that the sessions with them end. This side ends them with
    /// [`Nic::end_sessions`] or [`Nic::reset`].
    pub fn send_goodbyes<M: HostMemory, W: Wire<M>>(&mut self, now: Time, wire: &mut W) {
        for index in self.transport.peers() {
            if !self.transport.is_own(index) {
                self.transport.send_goodbye(now, wire, index);
            }
        }
    }

    /// Ends the sessions with all peers on this side, and gives up all that ran in them.
    /// Processes, segments and command queues stay.
    pub fn end_sessions<H: Host>(&mut self, now: Time, host: &H) {
        for index in self.transport.peers() {
            if !self.transport.is_own(index) {
                self.peer_unreachable(now, host, index);
            }
        }
    }

    /// Revokes a segment: no page is touched for it any more (N2).
    pub(super) fn unexport<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
        id: SegmentId,
    ) -> Result<(), Status> {
        let process = self.core.process_mut(vni).ok_or(Status::NoSuchVni)?;
        let segment = process.segments.remove(id).ok_or(Status::NoSuchSegment)?;
        let running = process.operations.running();
        let running = running.filter(|operation| operation.failure.is_none());
        let running: Vec<_> = running
            .map(|operation| (operation.protocol, operation.id))
            .collect();
        for (protocol, operation) in running {
            let (protocols, mut cx) = self.parts(now, host);
            if protocols.uses_segment(protocol, operation, id) {
                protocols.fail(&mut cx, operation, Status::Aborted);
            }
        }
        let (protocols, mut cx) = self.parts(now, host);
        protocols.ended(&mut cx, Ended::Segment(vni, id));
        if segment.page_key == PageKey::Physical {
            return Ok(());
        }
        // What waits for one of its pages tries again and is refused. All faults are taken
        // out first: what may still use the range under another name waits again, in a
        // new fault over it.
        let mut faults = Vec::new();
        if let Some(process) = self.core.process_mut(vni) {
            while let Some(fault) = process.faults.forget(segment.address, segment.end()) {
                faults.push(fault);
            }
        }
        for fault in &faults {
            let gone = Pending::PageFault(vni, fault.number, fault.range);
            self.core.events.retain(|event| *event != gone);
        }
        for fault in faults {
            self.release_fault(now, host, vni, fault, Status::Ok);
        }
        Ok(())
    }

    /// Ends a process: nothing of it is touched any more (N8, X9).
    pub(super) fn end_process<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
    ) -> Result<(), Status> {
        if self.core.process(vni).is_none() {
            return Err(Status::NoSuchVni);
        }
        let (protocols, mut cx) = self.parts(now, host);
        protocols.ended(&mut cx, Ended::Process(vni));
        let mut process = self.core.remove(vni).ok_or(Status::NoSuchVni)?;
        let port = process.port;
        let window = self.core.geometry.window_offset(vni);
        host.sram().store_u64(window + AWAKE, 0, Ordering::Release);
        self.core.counters.aborted += u64::from(process.operations.count());
        for waiter in process.faults.take_waiters(|_| true) {
            match waiter {
                Waiter::Frame(stored) if protocols::is_response(&stored.frame) => {
                    self.drop_stored(host, &stored);
                }
                Waiter::Frame(stored) if stored.held.is_some() => {
                    self.refuse_stored(&stored, Status::PeerGone);
                }
                Waiter::Frame(_) | Waiter::Operation(_) | Waiter::Response(_) | Waiter::Job(..) => {
                }
            }
        }
        for index in self.transport.peers() {
            self.transport.forget_notifications(index, vni);
            self.transport
                .drop_responses(index, |owner, _| owner == vni);
            if self.transport.is_own(index) {
                self.lose_operations(now, host, index, Some((port, News::OWN)));
            } else if self.transport.has_session(index) {
                self.transport.send_process_gone(index, port);
            }
        }
        Ok(())
    }

    /// Starts the command queue of a process again.
    pub(super) fn reset_queue<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
    ) -> Result<(), Status> {
        if self.core.process(vni).is_none() {
            return Err(Status::NoSuchVni);
        }
        let (protocols, mut cx) = self.parts(now, host);
        protocols.ended(&mut cx, Ended::Operations(vni));
        self.core.restart_queue(host, vni);
        let window = self.core.geometry.window_offset(vni);
        let sram = host.sram();
        for entry in 0..COMMAND_ENTRIES as u64 {
            sram.store_u64(window + command_offset(entry), 0, Ordering::Relaxed);
        }
        sram.store_u64(window + AWAKE, 0, Ordering::Release);
        // What was to come for the operations is of no use now.
        let taken = self.core.process_mut(vni).map(|process| {
            process.faults.take_waiters(|waiter| match waiter {
                Waiter::Operation(_) | Waiter::Job(..) => true,
                Waiter::Frame(stored) => protocols::is_response(&stored.frame),
                Waiter::Response(_) => false,
            })
        });
        for waiter in taken.into_iter().flatten() {
            if let Waiter::Frame(stored) = waiter {
                self.drop_stored(host, &stored);
            }
        }
        Ok(())
    }

    /// Gives up all operations whose other end is that peer, or a process there that has ended.
    fn lose_operations<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        process: Option<(Port, News)>,
    ) {
        let port = process.map(|(port, _)| port);
        for id in self.core.operations_with(index, port) {
            let failed = self
                .core
                .operation(id)
                .is_none_or(|operation| operation.failure.is_some());
            let (protocols, mut cx) = self.parts(now, host);
            match process {
                None => protocols.lost(&mut cx, id),
                Some(_) if failed => {}
                Some((_, news)) if protocols.outlives(&mut cx, id, news) => {}
                Some(_) => protocols.fail(&mut cx, id, Status::PeerGone),
            }
        }
    }

    /// A process of a peer has ended. What another process of that port has sent since may
    /// have overtaken the frame that says so.
    pub(super) fn forget_peer_process<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        port: Port,
        news: News,
    ) {
        let before = news.number;
        for process in self.core.processes() {
            let responses = &mut process.responses;
            responses.retain(|request| !request.is_request_of(index, port, before));
            process.faults.take_waiters(|waiter| match waiter {
                Waiter::Operation(_) | Waiter::Job(..) => false,
                Waiter::Frame(stored) | Waiter::Response(stored) => {
                    stored.is_request_of(index, port, before)
                }
            });
        }
        self.transport.drop_responses(index, |_, request| {
            request.is_request_of(index, port, before)
        });
        let (protocols, mut cx) = self.parts(now, host);
        protocols.ended(&mut cx, Ended::PeerProcess(index, port, before));
        self.lose_operations(now, host, index, Some((port, news)));
    }

    /// There is no route to a peer: this side ends the session, and the peer leaves.
    #[cold]
    pub(super) fn peer_unreachable<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) {
        let node = self.transport.node_of(index);
        self.give_up(now, host, index);
        self.transport.vacate(index);
        if self.protocols.awaits(node) {
            self.transport.expect(now, node);
        }
        self.resume_unblocked(now, host);
    }

    /// A peer was silent for too long: this side ends the session. From now on its node is known to be
    /// gone.
    pub(super) fn peer_silent<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) {
        let lived = self.give_up(now, host, index);
        self.transport.give_up(now, index, lived);
        self.resume_unblocked(now, host);
    }

    /// Gives up all that runs with a peer. Returns true if it had a session; if not, what waits for
    /// its node without having sent anything waits on.
    fn give_up<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) -> bool {
        let lived = self.transport.has_session(index);
        self.transport.end_session(index);
        let again = now.after(RETRY_AFTER);
        let node = self.transport.node_of(index);
        let ended = match lived {
            true => Ended::Session(index, node, again),
            false => Ended::Unreached(index, node, again),
        };
        self.forget_session(now, host, index, ended);
        self.lose_operations(now, host, index, None);
        lived
    }

    /// Asks peers to leave with which nothing has happened for a while.
    #[cold]
    pub(super) fn sweep_peers<H: Host>(&mut self, now: Time, host: &H) {
        let quiet = self.transport.sweep(now);
        if quiet.is_empty() {
            return;
        }
        let busy = self.core.peers_with_operations();
        for index in quiet {
            let used = busy.contains(&index) || self.is_awaited(index);
            if !used && self.transport.leave(index) {
                self.transport.end_session(index);
                self.peer_left(now, host, index);
            }
        }
    }

    /// Returns true if an operation has that peer as its other end, or a protocol waits for it.
    pub(super) fn is_used(&mut self, index: PeerIndex) -> bool {
        self.is_awaited(index) || self.core.has_operation_with(index)
    }

    /// Returns true if a protocol waits for that peer.
    fn is_awaited(&mut self, index: PeerIndex) -> bool {
        let node = self.transport.node_of(index);
        self.protocols.awaits(node)
    }

    /// A session has ended in which nothing ran. The peer goes, unless something waits for it,
    /// or it has begun another one.
    #[cold]
    pub(super) fn session_left<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) {
        let node = self.transport.node_of(index);
        self.forget_session(now, host, index, Ended::Left(index, node, now));
        if !self.transport.has_session(index) {
            match self.is_used(index) {
                true => drop(self.transport.expect(now, node)),
                false => self.transport.vacate(index),
            }
        }
    }

    /// A peer goes with which nothing is under way.
    pub(super) fn peer_left<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) {
        let node = self.transport.node_of(index);
        self.forget_session(now, host, index, Ended::Left(index, node, now));
        self.transport.vacate(index);
    }

    /// Forgets and gives up all that ran in a session with a peer, which has ended. It can
    /// be tried again at `again`.
    #[cold]
    pub(super) fn session_ended<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        again: Time,
    ) {
        let node = self.transport.node_of(index);
        self.forget_session(now, host, index, Ended::Session(index, node, again));
        self.lose_operations(now, host, index, None);
    }

    /// Forgets what a peer has sent in a session that has `ended`.
    fn forget_session<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex, ended: Ended) {
        while let Some(stored) = self.core.take_early(index, u64::MAX) {
            self.drop_stored(host, &stored);
        }
        let mut taken = Vec::new();
        for process in self.core.processes() {
            process.responses.retain(|request| request.peer != index);
            taken.extend(process.faults.take_waiters_of(index));
        }
        for waiter in taken {
            if let Waiter::Frame(stored) = waiter {
                self.drop_stored(host, &stored);
            }
        }
        let (protocols, mut cx) = self.parts(now, host);
        protocols.ended(&mut cx, ended);
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Limits;
    use crate::ids::PeerIndex;
    use crate::testing::{page, Net, Pair};
    use qnic_abi::NodeId;

    /// How often a NIC has looked through its operations.
    fn searches(net: &Net, node: usize) -> u64 {
        net.cluster().nodes[node].nic.core.searches
    }

    fn peer(net: &Net, node: usize, other: u16) -> PeerIndex {
        let transport = &net.cluster().nodes[node].nic.transport;
        transport.find(NodeId(other)).expect("a peer")
    }

    /// A peer that asks to leave over and over, while an operation with it runs, makes a NIC look
    /// through its operations now and then only. In the end it is let go all the same.
    #[test]
    fn a_peer_that_asks_over_and_over_is_looked_at_now_and_then() {
        const ASKS: u64 = 1000;
        let limits = Limits {
            idle_peer: 10_000_000,
            ..Limits::default()
        };
        let net = Net::new(2, 512, 8, &limits);
        let Pair { net, a, b } = Pair::present(net);
        b.write(&a).bytes(8).run();
        net.answer_faults(false);
        b.evict(page(1));
        b.write(&a).from(page(1)).bytes(8).issue();
        net.settle();
        assert_eq!((b.done().0, net.faults(1)), (1, 1), "an operation runs");
        let index = peer(&net, 0, 1);
        let ask = || {
            net.cluster().nodes[0].nic.transport.leave(index);
            net.poll_both(2);
        };
        let before = searches(&net, 1);
        for _ in 0..ASKS {
            ask();
        }
        assert_eq!(searches(&net, 1), before + 1, "at one time");
        for _ in 0..10 {
            net.advance(limits.idle_peer / 10);
            ask();
        }
        assert_eq!(searches(&net, 1), before + 3, "in the time of a sweep");
        net.answer_all(1, 1);
        assert_eq!((b.done().0, b.errors()), (2, vec![]));
        net.advance(limits.idle_peer);
        ask();
        let gone = |node: usize, other| {
            let transport = &net.cluster().nodes[node].nic.transport;
            transport.find(NodeId(other)).is_none()
        };
        assert!(gone(0, 1) && gone(1, 0), "it is let go");
    }

    /// A sweep looks through the operations once, however many peers are quiet.
    #[test]
    fn a_sweep_looks_through_the_operations_once() {
        let limits = Limits {
            peers: 9,
            window: 64,
            idle_peer: 10_000_000,
            ..Limits::default()
        };
        let net = Net::new(9, 512, 8, &limits);
        let first = net.party(0, 1).present();
        for node in 1..9 {
            let other = net.party(node, 2).present();
            first.write(&other).bytes(8).run();
        }
        net.run();
        let peers = net.cluster().nodes[0].nic.transport.peers().len();
        let before = searches(&net, 0);
        // The first sweep notes how far each peer is, the second asks those that are no further.
        for _ in 0..2 {
            net.advance(limits.idle_peer * 5 / 4);
            net.poll(0);
        }
        assert_eq!(searches(&net, 0), before + 1);
        net.run();
        let left = net.cluster().nodes[0].nic.transport.peers().len();
        assert!(left < peers, "they are asked: {left} of {peers}");
    }
}
