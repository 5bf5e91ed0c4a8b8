use super::*;

#[test]
fn messages_say_what_where_and_what_to_do() {
    let failure = TransferError {
        operation: Operation::Write,
        node: NodeId(2),
        port: Port(7),
        segment: SegmentName(0xab),
        offset: 16,
        length: 4096,
        status: Status::AccessDenied,
    };
    let error = Error::Transfer(TransferErrors {
        failures: vec![failure, failure],
        more: Vec::new(),
    });
    assert_eq!(
        error.to_string(),
        "write to segment 0xab of node 2, port 7 (4096 bytes at offset 16): the segment does \
         not grant this access or notification; the exporter must grant it (ExportOptions) \
         (and 1 more)"
    );
    assert_eq!(error.status(), Some(Status::AccessDenied));
}

#[test]
fn unknown_codes_are_incompatibilities() {
    assert!(Error::check(0, String::new).is_ok());
    assert!(matches!(
        Error::check(11, || "register".into()),
        Err(Error::Refused {
            status: Status::PortInUse,
            ..
        })
    ));
    assert!(matches!(
        Error::check(999, || "register".into()),
        Err(Error::Incompatible(_))
    ));
}
