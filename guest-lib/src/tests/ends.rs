//! The list of requests that have ended.

use qnic_abi::host_area::COMPLETION_MORE;
use qnic_abi::message::{ReceiveCommand, ReceiveFlags};
use qnic_abi::Status;

use super::messages::{inbox, ANY};
use super::{fetch, setup};
use crate::message::{Ends, News, Pattern, Source};
use crate::Error;

#[test]
fn requests_are_listed_once_in_the_order_of_their_ends() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut ends = Ends::of(&endpoint);
    let part = || segment.part(0, 8);
    let mut requests = [(); 3].map(|()| endpoint.receive(&ANY, part()).post().unwrap());
    let commands = [(); 3].map(|()| fetch(&fake));
    assert_eq!(ends.take().unwrap(), None);
    fake.end(&commands[2], Status::Ok);
    fake.end(&commands[0], Status::Cancelled);
    // Whichever call takes the completions.
    assert!(requests[1].test().unwrap().is_none());
    let ids = requests.each_ref().map(|it| it.id());
    assert_eq!(ends.take().unwrap(), Some(ids[2]));
    assert_eq!(ends.take().unwrap(), Some(ids[0]));
    assert_eq!(ends.take().unwrap(), None);
    assert!(requests[2].test().unwrap().is_some());
    fake.end(&commands[1], Status::Ok);
    assert_eq!(ends.take().unwrap(), Some(ids[1]));
    assert_eq!(ends.take().unwrap(), None);
}

#[test]
fn a_receive_of_many_is_listed_for_each_message_and_says_when_it_has_ended() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut ends = Ends::of(&endpoint);
    let untagged = Pattern::untagged(Source::Any);
    let receive = endpoint.receive(&untagged, segment.part(0, 4096));
    let mut many = receive.least(100).many().unwrap();
    let command = fetch(&fake);
    let posted: ReceiveCommand = command.descriptor.read();
    let flags = ReceiveFlags::MANY | ReceiveFlags::UNTAGGED | ReceiveFlags::ANY_PROC;
    assert_eq!(
        (posted.ignore.get(), posted.flags.get()),
        (100, flags.bits())
    );
    fake.end_with(&command, Status::Ok, |it| it.flags = COMPLETION_MORE);
    assert_eq!(ends.take().unwrap(), Some(many.id()));
    assert!(many.test().unwrap().is_some() && !many.has_ended());
    fake.end_with(&command, Status::Ok, |it| it.offset = 8.into());
    assert_eq!(ends.take().unwrap(), Some(many.id()));
    assert!(many.test().unwrap().is_some() && many.has_ended());
    assert_eq!(ends.take().unwrap(), None);
}

#[test]
fn tagged_receives_keep_no_bytes() {
    let (_fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let refused = endpoint.receive(&ANY, segment.part(0, 8)).least(1).many();
    let refused = refused.map(drop);
    assert!(
        matches!(refused, Err(Error::BadPiece { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_reset_lists_what_it_ends() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut ends = Ends::of(&endpoint);
    let mut request = endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
    fetch(&fake);
    endpoint.reset_queue().unwrap();
    assert_eq!(ends.take().unwrap(), Some(request.id()));
    assert!(matches!(request.test(), Err(Error::QueueReset)));
}

#[test]
fn news_stay_the_same_until_something_may_have_ended() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let (mut ends, news) = (Ends::of(&endpoint), News::of(&endpoint));
    let mut request = endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
    let command = fetch(&fake);
    let before = news.changes();
    assert!(before.is_some());
    assert_eq!(ends.take().unwrap(), None);
    assert_eq!(news.changes(), before);
    fake.end(&command, Status::Ok);
    // It is not taken yet.
    assert_eq!(news.changes(), None);
    assert!(request.test().unwrap().is_some());
    // Another call has taken it: the list has it still.
    let after = news.changes();
    assert!(after.is_some() && after != before, "{after:?}");
    assert_eq!(ends.take().unwrap(), Some(request.id()));
    assert_eq!(ends.take().unwrap(), None);
    assert_eq!(news.changes(), after);
    endpoint.reset_queue().unwrap();
    assert_ne!(news.changes(), after);
}

#[test]
fn a_queue_that_has_stopped_has_no_news() {
    let (fake, endpoint, _remote) = setup();
    let news = News::of(&endpoint);
    assert!(news.changes().is_some());
    fake.fail_queue(Status::Malformed);
    assert_eq!(news.changes(), None);
}
