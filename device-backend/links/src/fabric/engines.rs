//! Frames from and to other engines of the process.

use std::fmt::Debug;

use qnic_nic::env::{Channel, Host, HostMemory, Order, Sent, Ticket, Time};
use qnic_nic::order_of;

use super::routes::{Route, Routes};
use super::slot::Slot;
use crate::codec::Packet;
use crate::siblings::{Delivery, Outbox, Put, RingFrame, Siblings};

/// Puts a frame into the ring of a way.
pub(super) fn send_to_engine<M: HostMemory + Clone + Debug>(
    siblings: Option<&mut Siblings<M>>,
    way: usize,
    delivery: Delivery,
    channel: Channel,
    packet: &Packet<'_, M>,
) -> Sent {
    let Some(outbox) = siblings.and_then(|siblings| siblings.outboxes.get_mut(way)) else {
        return Sent::NoRoute;
    };
    let Some(frame) = RingFrame::new(delivery, channel, packet.frame(), packet.payload()) else {
        return match delivery {
            Delivery::Lossy => Sent::Taken,
            Delivery::Lossless | Delivery::Back => Sent::NoRoute,
        };
    };
    let kept = frame.is_kept();
    match outbox.send(frame) {
        Put::At(place) if kept => Sent::Kept(Ticket {
            way: way as u32,
            place,
        }),
        Put::At(_) | Put::First | Put::Lost => Sent::Taken,
        Put::Refused => Sent::NoRoute,
    }
}

/// Gives a frame that has come on a way to its NIC. If there is no route to it, the frame goes
/// back. Returns the slot of that NIC; `None` if it is none of this fabric.
pub(super) fn take_from_engine<H: Host<Memory: Clone + Debug>>(
    slots: &mut [Slot<H>],
    routes: &Routes,
    outboxes: &mut [Outbox<H::Memory>],
    way: usize,
    frame: &RingFrame<H::Memory>,
    now: Time,
) -> Option<usize> {
    let packet = Packet::new(&frame.frame, frame.payload());
    let node = match frame.delivery {
        Delivery::Back => packet.source(),
        Delivery::Lossless | Delivery::Lossy => packet.destination(),
    };
    let Some(Route::Local(index)) = routes.find(node) else {
        return None;
    };
    let slot = &mut slots[index];
    // What it ends may have pages of its own under way, and must not be complete before they
    // are read.
    if slot.nic.keeps_frames()
        && (frame.delivery == Delivery::Back || ends(frame.frame.envelope.kind))
    {
        for outbox in outboxes.iter_mut() {
            outbox.recall(node);
        }
    }
    match frame.delivery {
        Delivery::Back => slot.take_back(now, &frame.frame),
        Delivery::Lossy => {
            slot.deliver(now, &packet, false);
        }
        Delivery::Lossless => {
            if !slot.deliver(now, &packet, true) {
                outboxes[way].send(RingFrame::back(packet.frame()));
            }
        }
    }
    Some(index)
}

/// Returns true if operations may end with a frame of that kind before the peer has all that was
/// sent for them.
fn ends(kind: u8) -> bool {
    order_of(kind) == Order::Between
}
