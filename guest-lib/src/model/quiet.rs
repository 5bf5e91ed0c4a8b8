//! Models of receives that ring no doorbell (`AWAKE` is 2) against a NIC that finds them when a message comes.

use qnic_abi::message::{ReceiveCommand, ReceiveFlags, SendCommand};
use qnic_abi::window::NOTHING_WAITS;

use super::*;
use crate::core::queue::Ring;

/// How many receives the process leaves unread.
const MOST: u64 = 8;

/// A message of no byte to the process itself.
fn send() -> Command {
    let mut command = SendCommand::command();
    command.header.remote_port = 1.into();
    Command::new(&command.descriptor(), &[])
}

/// A receive of any message.
fn receive() -> Command {
    let mut command = ReceiveCommand::command();
    command.flags = ReceiveFlags::ANY_PROC.bits().into();
    Command::new(&command.descriptor(), &[])
}

/// The process's queue sleeps, and no message waits.
fn asleep() -> Box<Model> {
    let words = [AWAKE, command_offset(0), command_offset(1)];
    let mut model = Model::with_words(words, [HEAD]);
    model.nic.handle_doorbell(0);
    model.poll();
    assert!(model.nic.prepare_sleep(&model.node));
    assert_eq!(
        model.window.load_u64(AWAKE, Ordering::Relaxed),
        NOTHING_WAITS
    );
    model
}

/// A Send rings, and the receive behind it does not. If the NIC has not read the receive when the message comes, it
/// looks once more; if the process stores it later, it sees that a message waits, and rings.
#[test]
fn a_receive_that_rings_no_doorbell_takes_the_message_that_comes() {
    check(|| {
        let model = asleep();
        let (window, area) = (model.window.clone(), model.host_area.clone());
        let (doorbell, wake) = (Rc::new(Notify::new()), Notify::new());
        let bell = doorbell.clone();
        let nic = loom::thread::spawn(move || model.run(2, &doorbell, &wake));
        let mut known = Doorbell::default();
        if send().publish(&window, &area, 0, &mut known) {
            bell.notify();
        }
        receive().store(&window, 1);
        if known.due(&window, &area, (1, MOST)) == Ring::Now {
            bell.notify();
        }
        // It has read both, or loom reports a deadlock.
        nic.join().unwrap();
    });
}

/// A receive by itself rings later, and is not lost then, whether the NIC has fallen asleep again meanwhile or not.
#[test]
fn a_receive_that_rings_later_is_read() {
    check(|| {
        let model = asleep();
        let (window, area) = (model.window.clone(), model.host_area.clone());
        let (doorbell, wake) = (Rc::new(Notify::new()), Notify::new());
        let bell = doorbell.clone();
        // It wakes up for another reason.
        bell.notify();
        let nic = loom::thread::spawn(move || model.run(1, &doorbell, &wake));
        let mut known = Doorbell::default();
        receive().store(&window, 0);
        match known.due(&window, &area, (0, MOST)) {
            Ring::Now => panic!("no message waits"),
            Ring::Never => {}
            Ring::Later => {
                if known.must_ring(&window, &area, 0) {
                    bell.notify();
                }
            }
        }
        nic.join().unwrap();
    });
}
