//! A program outside of the repository, which depends on packages of the library alone: each of
//! two nodes writes to the other, and checks what it got (`tests/src/vm/packages.rs`).

use std::time::Duration;

use qnic::{Access, Nic, NodeId, NotificationId, Port, SegmentName};

const PORT: Port = Port(100);
const INBOX: SegmentName = SegmentName(1);
const LETTER: NotificationId = NotificationId::new(1).unwrap();
const LIMIT: Duration = Duration::from_secs(60);

fn letter(from: NodeId) -> String {
    format!("a letter of {from}")
}

fn main() -> qnic::Result<()> {
    let endpoint = Nic::open()?.register(PORT)?;
    let peer = NodeId(1 - endpoint.node().0);
    let inbox = endpoint.allocate(4096)?;
    let _segment = endpoint.export(INBOX, &inbox, Access::WRITE)?;

    let theirs = endpoint.import(peer, PORT, INBOX, LIMIT)?;
    let ours = letter(endpoint.node());
    endpoint
        .write(&theirs, 0, ours.as_bytes())
        .notify(LETTER)
        .fenced()?;

    endpoint.notification(LETTER).take(Some(LIMIT))?;
    let wanted = letter(peer);
    assert_eq!(inbox.read_vec(0, wanted.len())?, wanted.as_bytes());
    println!("got {wanted:?}");
    Ok(())
}
