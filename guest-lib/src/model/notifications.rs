//! Models of notifications (N16, N17): arming, coalescing and waiting, this
//! library's code against the NIC's.
//!
//! The process signals itself: its commands are in the queue when the model
//! begins, and the NIC executes them in a thread of its own.

use qnic_abi::export::ExportOptions;
use qnic_abi::host_area::{notification_offset, signal_offset, NOTIFICATION_TAIL};
use qnic_abi::window::{armed_bit, NOTIFICATION_HEAD, SIGNAL_WAKE_REQUEST};
use qnic_abi::Access;

use super::*;
use crate::core::notifications::reader::RingReader;

/// The counted notification of the models.
pub(super) const ID: u32 = 5;
const KEY: u64 = 7;
const ADDRESS: u64 = 0x1000;

/// What the process's thread uses.
struct Side {
    window: Words,
    area: Words,
    reader: RingReader,
    wakes: WakeRequests,
    woken: Rc<Notify>,
}

impl Side {
    fn signals(&self) -> u64 {
        self.area.load_u64(signal_offset(ID), Ordering::Acquire)
    }

    fn take(&mut self) -> Option<u32> {
        self.reader.take(&self.window, &self.area)
    }

    /// Looks, and sleeps until the look finds something.
    fn wait<T>(&mut self, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            self.wakes.request(&self.window);
            if let Some(found) = look(self) {
                return found;
            }
            self.woken.wait();
        }
    }
}

/// A NIC with these notifications under way to its one process.
fn model(notifications: &[u32]) -> (Box<Model>, Side) {
    let window = [armed_bit(ID).0, NOTIFICATION_HEAD, SIGNAL_WAKE_REQUEST];
    let entries = [0, 1].map(notification_offset);
    let area = [signal_offset(ID), NOTIFICATION_TAIL]
        .into_iter()
        .chain(entries);
    let mut model = Model::with_words(window, area);
    model.export();
    for (number, notification) in (0..).zip(notifications) {
        let mut doorbell = Doorbell::default();
        let (window, area) = (&model.window, &model.host_area);
        notify(*notification).publish(window, area, number, &mut doorbell);
    }
    model.nic.handle_doorbell(0);
    let side = Side {
        wakes: WakeRequests::for_signals(&model.window),
        window: model.window.clone(),
        area: model.host_area.clone(),
        reader: RingReader::default(),
        woken: Rc::new(Notify::new()),
    };
    (model, side)
}

/// A command that signals the process itself.
pub(super) fn notify(notification: u32) -> Command {
    write_to_itself(notification, 0)
}

/// A write of no bytes to the process itself, in a lane; with a notification, unless that is 0.
pub(super) fn write_to_itself(notification: u32, lane: u8) -> Command {
    let mut command = WriteCommand::command();
    command.header.lane = lane;
    command.notification = notification.into();
    command.header.remote_port = 1.into();
    command.remote_address = ADDRESS.into();
    command.remote_key = KEY.into();
    Command::new(&command.descriptor(), &[])
}

impl Model {
    /// Exports a segment that notifications can name.
    pub(super) fn export(&mut self) {
        let body = control::Export {
            segment: 0.into(),
            flags: 0.into(),
            access: Access::WRITE.bits().into(),
            name: 1.into(),
            address: ADDRESS.into(),
            length: 64.into(),
            key: KEY.into(),
            page_key: 0.into(),
            options: ExportOptions::open(),
        };
        self.control(control::Opcode::Export, body.as_bytes());
    }
}

/// Runs the NIC until all `commands` are executed.
fn spawn(model: Box<Model>, side: &Side, commands: u64) -> loom::thread::JoinHandle<()> {
    let wake = side.woken.clone();
    loom::thread::spawn(move || model.run(commands, &Notify::new(), &wake))
}

/// Arming against a signal: it is found in the counter, or it enters the queue, or
/// both; never neither.
#[test]
fn a_signal_is_not_lost_between_counter_and_queue() {
    check(|| {
        let (model, mut side) = model(&[ID]);
        let nic = spawn(model, &side, 1);
        side.reader.arm(&side.window, ID, true);
        let found = side.signals() == 1;
        nic.join().unwrap();
        let entry = side.take();
        assert!(found || entry == Some(ID));
        assert_eq!(side.signals(), 1);
        assert_eq!(side.take(), None);
    });
}

/// Two signals that may coalesce, taken while they arrive: a process that looks at the
/// counter behind each entry sees both, and every sleep ends.
#[test]
fn coalesced_signals_are_all_seen() {
    check(|| {
        let (model, mut side) = model(&[ID, ID]);
        side.reader.arm(&side.window, ID, true);
        let nic = spawn(model, &side, 2);
        let mut seen = 0;
        while seen < 2 {
            let entry = side.wait(Side::take);
            assert_eq!(entry, ID);
            seen = side.signals();
        }
        nic.join().unwrap();
        // At most the second one has an entry of its own left.
        let left = side.take();
        assert!(left.is_none() || left == Some(ID));
        assert_eq!(side.take(), None);
    });
}

/// One-shot notifications arrive each once, in order, and wake a sleeping process.
#[test]
fn one_shots_arrive_in_order() {
    check(|| {
        let (model, mut side) = model(&[2000, 1024]);
        let nic = spawn(model, &side, 2);
        let arrived = [side.wait(Side::take), side.wait(Side::take)];
        assert_eq!(arrived, [2000, 1024]);
        nic.join().unwrap();
        assert_eq!(side.take(), None);
    });
}
