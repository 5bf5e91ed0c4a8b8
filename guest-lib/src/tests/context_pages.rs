//! Messages that stand in scattered pages: what the library describes, in a region or in a list of
//! the pool (Q4, Q6).

use qnic_abi::context::{
    ContextFlags, DoorbellState, PageDescriptor, CONTEXTS, LIST_PAGES, POOL_PAGES,
};
use qnic_abi::PAGE_SIZE;
use zerocopy::FromBytes;

use super::contexts::{named, receive, send, TO};
use super::messages::{ANY, SOON};
use super::{export, fetch, setup};
use crate::message::Room;
use crate::{Access, Error, Part, SegmentName, Status};

fn descriptors(bytes: &[u8]) -> Vec<PageDescriptor> {
    let bytes = bytes.chunks_exact(size_of::<PageDescriptor>());
    let read = bytes.map(|it| PageDescriptor::read_from_bytes(it).unwrap());
    read.collect()
}

#[test]
fn pages_are_described_one_by_one() {
    let (fake, endpoint, _remote) = setup();
    let (buffer, segment) = export(&endpoint, 10 * PAGE_SIZE);
    let page =
        |page: usize, offset: usize, length: usize| segment.part(page * PAGE_SIZE + offset, length);
    let parts = [
        page(5, 100, PAGE_SIZE - 100),
        page(2, 0, 2 * PAGE_SIZE),
        page(1, 0, 7),
    ];
    let mut sent = endpoint.send(&TO, &parts).post().unwrap();
    let command = fetch(&fake);
    let (context, region) = fake.context(named(&command));
    let length = (3 * PAGE_SIZE - 100 + 7) as u64;
    assert_eq!((context.pages.get(), context.length.get()), (4, length));
    assert_eq!(
        (context.local_segment.get(), context.local_key.get()),
        (0, 1000)
    );
    assert_eq!(context.flags.get(), ContextFlags::NOTIFY.bits());
    let expected = [
        (5, 100, PAGE_SIZE - 100, 1),
        (2, 0, PAGE_SIZE, 1),
        (3, 0, PAGE_SIZE, 1),
        (1, 0, 7, 1),
    ];
    let listed = descriptors(&region);
    for (found, (number, offset, length, valid)) in listed.iter().zip(expected) {
        let address = buffer.address() + (number * PAGE_SIZE) as u64;
        assert_eq!(found.address.get(), address);
        assert_eq!(usize::from(found.offset.get()), offset);
        assert_eq!(
            (usize::from(found.length.get()), found.valid.get()),
            (length, valid)
        );
    }
    assert!(listed[4..]
        .iter()
        .all(|it| *it == PageDescriptor::default()));
    fake.done(named(&command), Status::Ok);
    sent.wait(SOON).unwrap();

    let mut received = endpoint.receive(&ANY, Room::Parts(&[])).post().unwrap();
    let command = fetch(&fake);
    assert_eq!(fake.context(named(&command)).0.pages.get(), 0);
    fake.done(named(&command), Status::Ok);
    received.wait(SOON).unwrap();
}

#[test]
fn pieces_that_do_not_fit_are_refused() {
    let (fake, endpoint, _remote) = setup();
    let (_buffer, segment) = export(&endpoint, (LIST_PAGES + 1) * PAGE_SIZE);
    let second = endpoint.allocate(PAGE_SIZE).unwrap();
    let second = endpoint.export(SegmentName(2), &second, Access::READ);
    let second = second.unwrap();
    let page = segment.part(0, PAGE_SIZE);
    let cases: [(&[crate::Part<'_>], usize); 5] = [
        (&[page, segment.part(8, 100)], 1),
        (&[segment.part(0, 100), page], 1),
        (&[page, page, second.part(0, 8)], 2),
        (&[segment.part(1, LIST_PAGES * PAGE_SIZE)], 0),
        (
            &[
                page,
                segment.part(0, (LIST_PAGES - 1) * PAGE_SIZE),
                segment.part(0, 1),
            ],
            2,
        ),
    ];
    for (parts, wrong) in cases {
        let refused = endpoint.send(&TO, parts).post();
        match refused.map(drop) {
            Err(Error::BadPiece { piece, .. }) => assert_eq!(piece, wrong),
            other => panic!("{other:?}"),
        }
    }
    let outside = [segment.part(0, (LIST_PAGES + 2) * PAGE_SIZE)];
    assert_error!(
        endpoint.receive(&ANY, &outside).post(),
        Error::OutOfRange { .. }
    );
    let error = endpoint.send(&TO, &[page, segment.part(8, 100)]).post();
    assert_eq!(
        error.unwrap_err().to_string(),
        "piece 1 of the message does not begin where a page begins, and is not the first"
    );
    assert!(fake.fetch().is_none());
    assert_eq!(fake.doorbell(send(0)), DoorbellState::Free);
}

/// Sends of both kinds share the credits, and none overtakes another.
#[test]
fn more_pages_than_a_region_has_stand_in_a_page_of_the_pool() {
    const COUNT: usize = 12;
    let (fake, endpoint, _remote) = setup();
    let (buffer, segment) = export(&endpoint, 2 * COUNT * PAGE_SIZE);
    // With a hole behind each page.
    let at = |index: usize| 2 * index * PAGE_SIZE;
    let part = |index| segment.part(at(index), PAGE_SIZE);
    let parts: Vec<Part<'_>> = (0..COUNT).map(part).collect();
    let other = endpoint.pool().take(3).unwrap();
    let mut request = endpoint.receive(&ANY, &parts[..]).post().unwrap();
    let command = fetch(&fake);
    assert_eq!(named(&command), receive(0));
    let (context, _) = fake.context(receive(0));
    assert_eq!(usize::from(context.pages.get()), COUNT);
    assert_eq!(context.length.get(), (COUNT * PAGE_SIZE) as u64);
    let flags = ContextFlags::from_bits(context.flags.get()).unwrap();
    assert!(flags.contains(ContextFlags::LIST | ContextFlags::NOTIFY));
    assert_eq!(context.pool_page.get(), 3, "behind those that are taken");
    let mut list = vec![0; COUNT * size_of::<PageDescriptor>()];
    let pool = fake.pool();
    pool.read_bytes(3 * PAGE_SIZE, &mut list);
    for (index, found) in descriptors(&list).iter().enumerate() {
        assert_eq!(found.address.get(), buffer.address() + at(index) as u64);
        let rest = (found.offset.get(), found.length.get(), found.valid.get());
        assert_eq!(rest, (0, PAGE_SIZE as u16, 1));
    }
    // The page of the list is taken until the receive has ended.
    assert_eq!(endpoint.pool().free(), POOL_PAGES - 4);
    fake.done(receive(0), Status::Ok);
    request.wait(SOON).unwrap();
    assert_eq!(endpoint.pool().free(), POOL_PAGES - 3);

    // Without a page for the list nothing is posted; without a context the page goes back.
    let rest = endpoint.pool().take(POOL_PAGES - 3).unwrap();
    assert_error!(
        endpoint.send(&TO, &parts[..]).post(),
        Error::PoolFull { pages: 1, free: 0 }
    );
    assert!(fake.fetch().is_none());
    drop((rest, other));
    let post = || endpoint.receive(&ANY, Room::Parts(&[])).post().unwrap();
    let all: Vec<_> = (0..CONTEXTS).map(|_| post()).collect();
    assert_error!(
        endpoint.receive(&ANY, &parts[..]).post(),
        Error::NoContext { .. }
    );
    assert_eq!(endpoint.pool().free(), POOL_PAGES);
    for number in 0..CONTEXTS {
        fake.done(receive(number), Status::Ok);
    }
    drop(all);
}
