//! A model of doorbells of contexts (Q8): this library's side against the NIC's.
//!
//! The process sends to a node that cannot be reached: the NIC ends that with Done as soon as it
//! has read the command. Context, command and doorbell are loom's as far as they say whose turn it
//! is.

use qnic_abi::context::{ContextFlags, MessageContext};
use qnic_abi::host_area::{send_doorbell_offset, CompletionEntry, SEND_DOORBELLS, WRITABLE_PAGES};
use qnic_abi::window::send_context_offset;

use super::*;
use crate::core::contexts::{Contents, Contexts, Direction};

/// The NIC polls the queue already: it is about to fall asleep.
fn model() -> Box<Model> {
    let window = [AWAKE, WAKE_REQUEST, command_offset(0), command_offset(1)];
    // The words with the other process, and with the tag.
    let context = [0, 8].map(|word| send_context_offset(0) + word);
    let first = send_doorbell_offset(0);
    let doorbell = (first..first + size_of::<CompletionEntry>()).step_by(8);
    let window = window.into_iter().chain(context);
    let mut model = Model::with_words(window, [HEAD].into_iter().chain(doorbell));
    model.nic.handle_doorbell(0);
    model.poll();
    model
}

/// Each time the process uses the same context. It sees the result of this time, and whole; it is
/// woken for it; and the NIC reads what was stored this time.
fn a_context_comes_back(times: u64) {
    check(move || {
        let model = model();
        let (window, area) = (model.window.clone(), model.host_area.clone());
        let doorbells = area.part(SEND_DOORBELLS, WRITABLE_PAGES * PAGE_SIZE);
        let (doorbell, wake) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let (bell, woken) = (doorbell.clone(), wake.clone());
        let nic = loom::thread::spawn(move || model.run(times, &doorbell, &wake));
        let requests = WakeRequests::new(&window);
        let mut known = Doorbell::default();
        for time in 0..times {
            let context = MessageContext {
                remote_node: 9.into(),
                remote_port: 1.into(),
                flags: ContextFlags::REGION.bits().into(),
                tag: (100 + time).into(),
                ..MessageContext::default()
            };
            let contents = Contents::with_bytes(context, b"");
            // It begins with context 0.
            let mut contexts = Contexts::new(qnic_abi::context::CONTEXTS);
            let name = contexts.take(&doorbells, Direction::Send, Some(time));
            let name = name.unwrap();
            name.fill(&window, &contents);
            let command = Command::new(&name.command(&contents), &[]);
            if command.publish(&window, &area, time, &mut known) {
                bell.notify();
            }
            contexts.note_posted(name);
            let ended = loop {
                requests.request(&window);
                let mut left = contexts.under_way();
                match contexts.sweep(&doorbells, &mut left) {
                    Some(ended) => break ended,
                    None => woken.wait(),
                }
            };
            assert_eq!((ended.request, contexts.held()), (Some(time), 0));
            let entry = ended.entry.unwrap();
            assert_eq!(entry.status.get(), FAILED.code());
            assert_eq!((entry.tag.get(), entry.node.get()), (100 + time, 9));
        }
        nic.join().unwrap();
    });
}

#[test]
fn a_doorbell_is_read_whole() {
    a_context_comes_back(1);
}

#[test]
fn a_context_that_is_taken_again_has_no_result_of_before() {
    a_context_comes_back(2);
}
