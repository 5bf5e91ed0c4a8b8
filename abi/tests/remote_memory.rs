//! Golden bytes of the header of remote memory, and what is no header (H9).

use proptest::prelude::*;
use qnic_abi::remote_memory::{Attach, Header, Kind, Reason, HEADER_BYTES, MAX_BLOCK};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes in hexadecimal, eight by eight.
fn hex(bytes: &[u8]) -> String {
    let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.chunks(8).map(word).collect::<Vec<String>>().join(" ")
}

fn header(kind: Kind) -> Header {
    Header {
        kind: kind as u8,
        request: 0x0403_0201.into(),
        session: 0x1122_3344_5566_7788.into(),
        ..Default::default()
    }
}

#[test]
fn a_read_its_page_and_a_refusal() {
    let read = Header {
        block: 9.into(),
        target: 0x1234.into(),
        ..header(Kind::Read)
    };
    let golden = "0500000001020304 8877665544332211 0900000000000000 0000000000000000 \
                  3412000000000000";
    assert_eq!(hex(read.as_bytes()), golden);
    assert!(read.is_valid());

    let page = Header {
        block: 9.into(),
        version: 7.into(),
        ..header(Kind::Page)
    };
    let golden = "0600000001020304 8877665544332211 0900000000000000 0700000000000000 \
                  0000000000000000";
    assert_eq!(hex(page.as_bytes()), golden);
    assert!(page.is_valid());

    let refused = Header {
        reason: Reason::NoSession as u8,
        block: 9.into(),
        ..header(Kind::Refused)
    };
    let golden = "0905000001020304 8877665544332211 0900000000000000 0000000000000000 \
                  0000000000000000";
    assert_eq!(hex(refused.as_bytes()), golden);
    assert!(refused.is_valid());
}

#[test]
fn an_attach_and_what_is_attached() {
    let attach = Attach {
        kind: Kind::Attach as u8,
        request: 1.into(),
        client: 2.into(),
        volume: 3.into(),
        key: *b"0123456789abcdef",
        ..Default::default()
    };
    let golden = "0100000001000000 0200000000000000 0300000000000000 3031323334353637 \
                  3839616263646566";
    assert_eq!(hex(attach.as_bytes()), golden);
    assert!(attach.is_valid());
    assert!(!Attach {
        client: 0.into(),
        ..attach
    }
    .is_valid());

    let attached = Header {
        window: 0x40.into(),
        block: 0x1000.into(),
        version: 2.into(),
        ..header(Kind::Attached)
    };
    let golden = "0200400001020304 8877665544332211 0010000000000000 0200000000000000 \
                  0000000000000000";
    assert_eq!(hex(attached.as_bytes()), golden);
    assert!(attached.is_valid());
}

#[test]
fn what_is_left_empty_has_to_be_zero() {
    assert!(!header(Kind::Attach).is_valid(), "has a layout of its own");
    assert!(!header(Kind::Leave).is_valid(), "answers no request");
    assert!(!header(Kind::Refused).is_valid(), "without a reason");
    assert!(!header(Kind::Written).is_valid(), "without a version");
    let beyond = Header {
        block: (MAX_BLOCK + 1).into(),
        ..header(Kind::Read)
    };
    assert!(!beyond.is_valid(), "a block beyond all volumes");
    for kind in [Kind::Renew, Kind::Detach, Kind::Detached] {
        assert!(header(kind).is_valid());
        let with = Header {
            block: 1.into(),
            ..header(kind)
        };
        assert!(!with.is_valid(), "{kind:?} has no block");
    }
}

proptest! {
    /// No bytes lead to a panic, and what is valid has a kind.
    #[test]
    fn any_bytes_can_be_checked(bytes in any::<[u8; HEADER_BYTES]>(), kind in 0u8..16) {
        let mut bytes = bytes;
        bytes[0] = kind;
        let header = Header::read_from_bytes(&bytes).unwrap();
        if header.is_valid() {
            prop_assert!(Kind::try_from(header.kind).is_ok());
        }
        let attach = Attach::read_from_bytes(&bytes).unwrap();
        prop_assert!(!(attach.is_valid() && header.is_valid()));
    }
}
