//! Receives without a doorbell.

use qnic_abi::window::Changes;
use qnic_abi::Status;

use super::messages::{inbox, ANY};
use super::{fetch, setup};
use crate::core::wait::Wakes;
use crate::message::{Ends, News, Request};

/// Its drop would wait for a NIC that answers.
fn forget(posted: crate::Result<Request<'_>>) {
    std::mem::forget(posted.unwrap());
}

#[test]
fn a_quiet_receive_rings_only_after_many_looks_in_vain() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut ends = Ends::of(&endpoint);
    let receive = || endpoint.receive(&ANY, segment.part(0, 8)).quietly().post();
    fake.sleep_without_messages();
    let before = fake.doorbells();
    let mut first = receive().unwrap();
    assert_eq!(ends.take().unwrap(), None);
    assert!(first.test().unwrap().is_none());
    assert_eq!(fake.doorbells(), before);
    // A message comes: the NIC reads it, and sleeps again.
    fake.end(&fetch(&fake), Status::Ok);
    fake.sleep_without_messages();
    assert!(ends.take().unwrap().is_some() && first.test().unwrap().is_some());
    assert_eq!(fake.doorbells(), before);

    forget(receive());
    let news = News::of(&endpoint);
    let looks = (0..10_000).take_while(|_| {
        news.changes();
        fake.doorbells() == before
    });
    let looks = looks.count();
    // The clock may ring before that.
    assert!((16..10_000).contains(&looks), "{looks}");
    for _ in 0..10_000 {
        news.changes();
    }
    assert_eq!(fake.doorbells(), before + 1, "once");
}

/// Fewer looks than in the test above: the doorbell is rung by the clock, which says that two milliseconds lie between
/// two looks.
#[test]
fn a_quiet_receive_of_a_process_that_looks_rarely_rings_after_some_of_its_looks() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    fake.sleep_without_messages();
    let before = fake.doorbells();
    forget(endpoint.receive(&ANY, segment.part(0, 8)).quietly().post());
    let rung = |looks: std::ops::Range<u64>| {
        looks.for_each(|look| endpoint.core().tire_of_quiet_at(|| 1 + 2000 * look));
        fake.doorbells() - before
    };
    // It is read at every sixteenth look, and only a second reading can tell of time.
    assert_eq!(rung(0..16), 0);
    assert_eq!(rung(16..32), 1);
    assert_eq!(rung(32..100), 1, "once");
}

#[test]
fn a_quiet_receive_rings_at_once_where_a_message_waits_or_a_thread_sleeps_or_many_stand_unread() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let receive = || endpoint.receive(&ANY, segment.part(0, 8)).quietly().post();
    let rung = |expected: u64| assert_eq!(fake.doorbells(), expected);
    fake.set_awake(false);
    let before = fake.doorbells();
    forget(receive());
    rung(before + 1);
    fetch(&fake);

    fake.sleep_without_messages();
    forget(receive());
    rung(before + 1);
    endpoint.core().request_wake(Wakes::For(Changes::ANYTHING));
    rung(before + 2);
    fetch(&fake);

    fake.sleep_without_messages();
    (0..16).for_each(|_| forget(receive()));
    rung(before + 3);
    (0..16).for_each(|_| {
        fetch(&fake);
    });
    fake.sleep_without_messages();
    forget(receive());
    rung(before + 3);
    forget(endpoint.receive(&ANY, segment.part(0, 8)).post());
    rung(before + 4);
}
