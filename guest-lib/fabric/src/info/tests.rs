//! Hints as programs give them, written down from their sources, and what is made of them.

use std::ptr::null_mut;

use qnic::Port;

use super::offer::{Hints, Offer, CAPS, INJECT_MAX, MESSAGE_MAX};
use super::select::{select, Named, Refused};
use crate::address::Address;
use crate::sys::{self, DomainAttr, EpAttr, RxAttr, TxAttr};

const V1_0: u32 = 1 << 16;
const V1_17: u32 = 1 << 16 | 17;
const V2_1: u32 = 2 << 16 | 1;

const SAFE: u32 = 1;
const DOMAIN: u32 = 3;
const MANUAL: u32 = 2;
const ANY_AV: u32 = 1;
const EP_MSG: u32 = 1;
const EP_DGRAM: u32 = 2;

/// What `fi_allocinfo` returns.
fn allocated() -> (Hints, TxAttr, RxAttr, EpAttr, DomainAttr) {
    let offer = Offer::all("", 0);
    let tx = TxAttr {
        caps: 0,
        msg_order: 0,
        inject_size: 0,
        size: 0,
        iov_limit: 0,
        ..offer.tx
    };
    let rx = RxAttr {
        caps: 0,
        msg_order: 0,
        size: 0,
        iov_limit: 0,
        ..offer.rx
    };
    let ep = EpAttr {
        kind: 0,
        protocol: 0,
        protocol_version: 0,
        max_msg_size: 0,
        mem_tag_format: 0,
        tx_ctx_cnt: 0,
        rx_ctx_cnt: 0,
        auth_key: null_mut(),
        ..offer.ep
    };
    let domain = DomainAttr {
        threading: 0,
        control_progress: 0,
        data_progress: 0,
        resource_mgmt: 0,
        mr_key_size: 0,
        cq_data_size: 0,
        cq_cnt: 0,
        ep_cnt: 0,
        cntr_cnt: 0,
        tx_ctx_cnt: 0,
        rx_ctx_cnt: 0,
        max_ep_tx_ctx: 0,
        max_ep_rx_ctx: 0,
        mr_iov_limit: 0,
        caps: 0,
        ..offer.domain
    };
    (Hints::default(), tx, rx, ep, domain)
}

fn hints(
    change: impl FnOnce(&mut Hints, &mut TxAttr, &mut RxAttr, &mut EpAttr, &mut DomainAttr),
) -> Hints {
    let (mut hints, mut tx, mut rx, mut ep, mut domain) = allocated();
    change(&mut hints, &mut tx, &mut rx, &mut ep, &mut domain);
    Hints {
        tx: Some(tx),
        rx: Some(rx),
        ep: Some(ep),
        domain: Some(domain),
        ..hints
    }
}

/// Open MPI's mtl: the first query, of API 1.0.
fn mtl() -> Hints {
    hints(|hints, tx, rx, ep, domain| {
        hints.caps = sys::TAGGED;
        ep.kind = sys::EP_RDM;
        tx.msg_order = sys::ORDER_SAS;
        rx.msg_order = sys::ORDER_SAS;
        tx.op_flags = sys::COMPLETION;
        rx.op_flags = sys::COMPLETION;
        domain.data_progress = MANUAL;
        domain.av_type = ANY_AV;
        domain.resource_mgmt = sys::RM_ENABLED;
    })
}

/// Its second query, which asks for data with completions.
fn mtl_with_data() -> Hints {
    let mut hints = mtl();
    hints.caps |= sys::DIRECTED_RECV;
    if let Some(domain) = &mut hints.domain {
        domain.cq_data_size = 4;
        domain.threading = DOMAIN;
    }
    hints
}

/// Open MPI's btl: one-sided.
fn btl() -> Hints {
    hints(|hints, tx, rx, ep, domain| {
        hints.caps = sys::RMA | sys::ATOMIC;
        ep.kind = sys::EP_RDM;
        tx.iov_limit = 1;
        rx.iov_limit = 1;
        tx.op_flags = sys::DELIVERY_COMPLETE | sys::COMPLETION;
        rx.op_flags = sys::COMPLETION;
        domain.threading = DOMAIN;
    })
}

/// MPICH, ch4:ofi, with everything it can use.
fn mpich() -> Hints {
    hints(|hints, tx, _, ep, domain| {
        hints.caps = sys::RMA
            | sys::WRITE
            | sys::READ
            | sys::REMOTE_WRITE
            | sys::REMOTE_READ
            | sys::ATOMIC
            | sys::TAGGED
            | sys::MSG
            | sys::MULTI_RECV
            | sys::SEND
            | sys::RECV
            | sys::DIRECTED_RECV;
        ep.kind = sys::EP_RDM;
        tx.op_flags = sys::COMPLETION;
        tx.msg_order = sys::ORDER_SAS;
        domain.cq_data_size = 4;
        domain.threading = DOMAIN;
        domain.control_progress = MANUAL;
        domain.data_progress = MANUAL;
        domain.resource_mgmt = sys::RM_ENABLED;
        domain.av_type = sys::AV_TABLE;
    })
}

/// `fi_pingpong -e rdm`.
fn pingpong() -> Hints {
    hints(|hints, _, _, ep, domain| {
        hints.caps = sys::MSG;
        ep.kind = sys::EP_RDM;
        domain.mr_mode = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6;
    })
}

/// fabtests' `fi_rdm_tagged_peek` and `fi_unexpected_msg`.
fn fabtests_tagged() -> Hints {
    hints(|hints, tx, rx, ep, domain| {
        hints.caps = sys::TAGGED | sys::DIRECTED_RECV;
        ep.kind = sys::EP_RDM;
        tx.msg_order = sys::ORDER_SAS;
        rx.msg_order = sys::ORDER_SAS;
        domain.resource_mgmt = sys::RM_ENABLED;
    })
}

/// fabtests' `fi_multi_recv`.
fn fabtests_multi() -> Hints {
    hints(|hints, _, rx, ep, _| {
        hints.caps = sys::MSG | sys::MULTI_RECV;
        ep.kind = sys::EP_RDM;
        rx.op_flags = sys::MULTI_RECV;
    })
}

fn selected(version: u32, hints: &Hints) -> Result<Offer, Refused> {
    select("qnic0", version, Named::default(), Some(hints))
}

/// All that an offer says.
fn shown(offer: &Offer) -> String {
    format!("{offer:?}")
}

#[test]
fn without_hints_everything_is_offered() {
    let offer = select("qnic0", V2_1, Named::default(), None).unwrap();
    assert_eq!(offer.caps, CAPS);
    assert_eq!(offer.ep.max_msg_size, MESSAGE_MAX);
    assert_eq!(offer.tx.inject_size, INJECT_MAX);
    assert_eq!((offer.mode, offer.domain.mr_mode), (0, 0));
    assert_eq!(
        (offer.domain_name.as_str(), offer.fabric_name.as_str()),
        ("qnic0", "qnic")
    );
    assert_eq!(offer.api_version, V2_1);
}

#[test]
fn what_was_returned_passes_again_as_it_is() {
    let queries = [
        (V1_0, Some(mtl())),
        (V1_0, Some(mtl_with_data())),
        (V1_17, Some(pingpong())),
        (V1_17, Some(fabtests_tagged())),
        (V1_17, Some(fabtests_multi())),
        (V1_0, Some(btl())),
        (V1_17, Some(mpich())),
        (V1_17, None),
        (V2_1, None),
    ];
    for (version, hints) in queries {
        let first = select("qnic0", version, Named::default(), hints.as_ref()).unwrap();
        let second = selected(version, &first.as_hints()).unwrap();
        assert_eq!(shown(&first), shown(&second));
    }
}

#[test]
fn open_mpi_gets_tagged_messages() {
    let offer = selected(V1_0, &mtl()).unwrap();
    let directions = sys::SEND | sys::RECV;
    assert_eq!(
        offer.caps,
        sys::TAGGED | directions | sys::LOCAL_COMM | sys::REMOTE_COMM
    );
    assert_eq!(offer.tx.caps, sys::TAGGED | sys::SEND);
    assert_eq!(offer.rx.caps, sys::TAGGED | sys::RECV);
    assert_eq!(
        (offer.tx.op_flags, offer.rx.op_flags),
        (sys::COMPLETION, sys::COMPLETION)
    );
    // Scalable, in the words of API 1.0.
    assert_eq!(offer.domain.mr_mode, 2);

    let offer = selected(V1_0, &mtl_with_data()).unwrap();
    assert_eq!(offer.domain.cq_data_size, 8);
    assert!(offer.caps & sys::DIRECTED_RECV != 0);
}

#[test]
fn open_mpi_gets_memory_of_peers_with_delivery_complete() {
    let offer = selected(V1_0, &btl()).unwrap();
    let remote = sys::REMOTE_READ | sys::REMOTE_WRITE;
    let both = sys::RMA | sys::ATOMIC;
    assert_eq!(offer.tx.caps, both | sys::READ | sys::WRITE);
    assert_eq!(offer.rx.caps, both | remote);
    assert!(offer.tx.op_flags & sys::DELIVERY_COMPLETE != 0);
    assert_eq!(
        (offer.ep.max_order_waw_size, offer.tx.rma_iov_limit),
        (MESSAGE_MAX, 1)
    );
}

/// What a program would do for the provider is not asked for; the words of old programs come back.
#[test]
fn modes_of_memory_are_those_that_are_needed() {
    let mode = |version, mr_mode| {
        let hints = hints(|hints, _, _, _, domain| {
            hints.caps = sys::RMA;
            domain.mr_mode = mr_mode;
        });
        selected(version, &hints).unwrap().domain.mr_mode
    };
    for bits in [0, 1 << 2, 0b111_1111_0000, !3] {
        assert_eq!(mode(V2_1, bits), 0);
    }
    for version in [V1_0, V2_1] {
        assert_eq!(mode(version, sys::MR_BASIC), sys::MR_BASIC);
        assert_eq!(mode(version, sys::MR_SCALABLE), sys::MR_SCALABLE);
    }
    assert_eq!(mode(V1_0, 0), sys::MR_SCALABLE);
}

#[test]
fn threads_and_progress_are_echoed() {
    for threading in 1..=5 {
        for progress in 1..=3 {
            let hints = hints(|_, _, _, _, domain| {
                domain.threading = threading;
                domain.control_progress = progress;
                domain.data_progress = progress;
            });
            let domain = selected(V2_1, &hints).unwrap().domain;
            assert_eq!(domain.threading, threading);
            assert_eq!(
                (domain.control_progress, domain.data_progress),
                (progress, progress)
            );
        }
    }
    let domain = selected(V2_1, &pingpong()).unwrap().domain;
    assert_eq!(
        (domain.threading, domain.data_progress),
        (SAFE, sys::PROGRESS_AUTO)
    );
}

#[test]
fn flags_of_operations_are_echoed() {
    let delivered = sys::DELIVERY_COMPLETE | sys::COMPLETION;
    let offer = selected(V2_1, &hints(|_, tx, _, _, _| tx.op_flags = delivered));
    assert_eq!(offer.unwrap().tx.op_flags, delivered);
    let offer = selected(V1_17, &fabtests_multi()).unwrap();
    assert_eq!(offer.rx.op_flags, sys::MULTI_RECV);
    assert!(offer.rx.caps & sys::MULTI_RECV != 0);
}

#[test]
fn what_is_not_there_is_refused_by_its_name() {
    let refused = |hints: &Hints| {
        selected(V2_1, hints)
            .map(|offer| shown(&offer))
            .unwrap_err()
            .0
    };
    for (kind, name) in [(EP_MSG, "ep_attr->type"), (EP_DGRAM, "ep_attr->type")] {
        assert_eq!(refused(&hints(|_, _, _, ep, _| ep.kind = kind)), name);
    }
    let shared = hints(|_, _, _, ep, _| ep.rx_ctx_cnt = usize::MAX);
    assert_eq!(refused(&shared), "ep_attr->rx_ctx_cnt");
    let scalable = hints(|_, _, _, ep, _| ep.tx_ctx_cnt = 2);
    assert_eq!(refused(&scalable), "ep_attr->tx_ctx_cnt");
    let long = hints(|_, _, _, ep, _| ep.max_msg_size = MESSAGE_MAX + 1);
    assert_eq!(refused(&long), "ep_attr->max_msg_size");
    let ordered = hints(|_, tx, _, _, _| tx.msg_order = 1 << 5);
    assert_eq!(refused(&ordered), "tx_attr->msg_order");
    assert_eq!(
        refused(&hints(|hints, _, _, _, _| hints.addr_format = 2)),
        "addr_format"
    );
    assert_eq!(
        refused(&hints(|hints, _, _, _, _| hints.caps = 1 << 47)),
        "caps"
    );
    assert_eq!(
        refused(&hints(|hints, _, _, _, _| hints.source = Some(vec![0; 15]))),
        "src_addr"
    );
    let other = |name: &str| Some(name.to_owned());
    assert_eq!(
        refused(&hints(|hints, _, _, _, _| hints.domain_name = other("eth0"))),
        "domain_attr->name"
    );
    assert_eq!(
        refused(&hints(|hints, _, _, _, _| hints.fabric_name = other("tcp"))),
        "fabric_attr->name"
    );
    let layered = hints(|hints, _, _, _, _| hints.provider = other("qnic;ofi_rxm"));
    assert_eq!(refused(&layered), "fabric_attr->prov_name");
}

#[test]
fn addresses_of_queries_come_back() {
    let text = "qnic://3:7:0:0:1f:0";
    let address: Address = text.parse().unwrap();
    let offer = select(
        "qnic0",
        V2_1,
        Named {
            node: Some(text),
            ..Named::default()
        },
        None,
    )
    .unwrap();
    assert_eq!(
        (offer.source.port, offer.destination),
        (Port(0), Some(address))
    );
    let offer = select(
        "qnic0",
        V2_1,
        Named {
            node: Some(text),
            is_source: true,
            ..Named::default()
        },
        None,
    )
    .unwrap();
    assert_eq!((offer.source, offer.destination), (address, None));
    let service = |service| Named {
        node: None,
        service: Some(service),
        is_source: true,
    };
    let offer = select("qnic0", V2_1, service("900"), None).unwrap();
    assert_eq!(offer.source, Address::unassigned(Port(900)));
    let refused = select("qnic0", V2_1, service("http"), None).map(|offer| shown(&offer));
    assert!(refused.unwrap_err().0.starts_with("service"));
    let given = hints(|hints, _, _, _, _| hints.destination = Some(address.to_bytes().to_vec()));
    assert_eq!(selected(V2_1, &given).unwrap().destination, Some(address));
    let refused = select(
        "qnic0",
        V2_1,
        Named {
            node: Some("localhost"),
            ..Named::default()
        },
        None,
    )
    .map(|offer| shown(&offer));
    assert!(refused.unwrap_err().0.starts_with("node"));
}
