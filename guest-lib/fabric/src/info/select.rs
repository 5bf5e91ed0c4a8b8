//! What a caller's hints leave of an offer.

use qnic::Port;

use super::offer::{Hints, Offer, CAPS, DOMAIN_CAPS, NAME, RX_CAPS, RX_FLAGS, TX_CAPS, TX_FLAGS};
use crate::address::Address;
use crate::sys::{self, DomainAttr, EpAttr, RxAttr, TxAttr};

/// The hint that no info can meet, by its name in `fi_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) &'static str);

type Result<T> = std::result::Result<T, Refused>;

/// Since this version `mr_mode` is a set of bits; before, it was a number: basic or scalable.
const MODE_BITS: u32 = 1 << 16 | 5;

/// The address that a query names.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Named<'a> {
    /// A text, as `fi_av_straddr` writes it.
    pub(crate) node: Option<&'a str>,
    /// Without a node, the number of a port.
    pub(crate) service: Option<&'a str>,
    /// It is that of the endpoint, not of its peer.
    pub(crate) is_source: bool,
}

/// What the domain of this name offers to a caller of this version that names an address, perhaps, and has hints,
/// perhaps.
///
/// # Errors
/// [`Refused`]: the first hint that cannot be met.
pub(crate) fn select(
    domain: &str,
    version: u32,
    named: Named<'_>,
    hints: Option<&Hints>,
) -> Result<Offer> {
    let mut offer = Offer::all(domain, version);
    if version < MODE_BITS {
        offer.domain.mr_mode = sys::MR_SCALABLE;
    }
    if let Some(hints) = hints {
        fit(&mut offer, hints)?;
    }
    if let Some(node) = named.node {
        let address = node
            .parse()
            .map_err(|_| Refused("node (no text of an address)"))?;
        match named.is_source {
            true => offer.source = address,
            false => offer.destination = Some(address),
        }
    } else if let Some(service) = named.service.filter(|_| named.is_source) {
        let port = service
            .parse()
            .map_err(|_| Refused("service (no number of a port)"))?;
        offer.source = Address::unassigned(Port(port));
    }
    Ok(offer)
}

fn fit(offer: &mut Offer, hints: &Hints) -> Result<()> {
    fit_names(offer, hints)?;
    if hints.caps != 0 {
        offer.caps = caps(hints.caps)?;
        offer.tx.caps = offer.caps & TX_CAPS;
        offer.rx.caps = offer.caps & RX_CAPS;
    }
    check(
        hints.addr_format,
        &[sys::FORMAT_UNSPEC, sys::ADDR_QNIC],
        "addr_format",
    )?;
    if let Some(bytes) = &hints.source {
        offer.source = Address::wanted(bytes).ok_or(Refused("src_addr"))?;
    }
    offer.destination = address(hints.destination.as_deref(), "dest_addr")?;
    if let Some(ep) = &hints.ep {
        fit_ep(&mut offer.ep, ep)?;
    }
    if let Some(domain) = &hints.domain {
        fit_domain(&mut offer.domain, domain)?;
    }
    if let Some(tx) = &hints.tx {
        fit_tx(&mut offer.tx, tx)?;
    }
    if let Some(rx) = &hints.rx {
        fit_rx(&mut offer.rx, rx)?;
    }
    Ok(())
}

fn fit_names(offer: &Offer, hints: &Hints) -> Result<()> {
    let differs = |asked: &Option<String>, own: &str| asked.as_deref().is_some_and(|it| it != own);
    if differs(&hints.fabric_name, &offer.fabric_name) {
        return Err(Refused("fabric_attr->name"));
    }
    if differs(&hints.domain_name, &offer.domain_name) {
        return Err(Refused("domain_attr->name"));
    }
    // The loader asks providers that fit. What stands on top of another ("qnic;ofi_rxm") does not.
    let provider = hints.provider.as_deref().unwrap_or(NAME);
    match provider.contains(';') {
        true => Err(Refused("fabric_attr->prov_name")),
        false => Ok(()),
    }
}

/// What is granted of capabilities: those that were asked for, both directions if none is named, and those that
/// cost nothing.
fn caps(asked: u64) -> Result<u64> {
    if asked & !CAPS != 0 {
        return Err(Refused("caps"));
    }
    let accesses = sys::READ | sys::WRITE | sys::REMOTE_READ | sys::REMOTE_WRITE;
    let mut granted = asked | DOMAIN_CAPS;
    for (of, directions) in [
        (sys::MSG | sys::TAGGED, sys::SEND | sys::RECV),
        (sys::RMA | sys::ATOMIC, accesses),
    ] {
        if asked & of != 0 && asked & directions == 0 {
            granted |= directions;
        }
    }
    Ok(granted)
}

fn address(bytes: Option<&[u8]>, name: &'static str) -> Result<Option<Address>> {
    let parsed = bytes.map(|bytes| Address::from_bytes(bytes).ok_or(Refused(name)));
    parsed.transpose()
}

fn check(asked: u32, fitting: &[u32], name: &'static str) -> Result<()> {
    match fitting.contains(&asked) {
        true => Ok(()),
        false => Err(Refused(name)),
    }
}

/// Refuses numbers that are greater than those that there are.
fn limits<const N: usize>(numbers: [(usize, usize, &'static str); N]) -> Result<()> {
    for (asked, most, name) in numbers {
        if asked > most {
            return Err(Refused(name));
        }
    }
    Ok(())
}

/// Refuses bits beside those that there are.
fn bits<const N: usize>(sets: [(u64, u64, &'static str); N]) -> Result<()> {
    for (asked, all, name) in sets {
        if asked & !all != 0 {
            return Err(Refused(name));
        }
    }
    Ok(())
}

fn fit_ep(own: &mut EpAttr, asked: &EpAttr) -> Result<()> {
    check(asked.kind, &[sys::EP_UNSPEC, sys::EP_RDM], "ep_attr->type")?;
    check(
        asked.protocol,
        &[sys::PROTO_UNSPEC, sys::PROTO_QNIC],
        "ep_attr->protocol",
    )?;
    limits([
        (
            asked.protocol_version as usize,
            own.protocol_version as usize,
            "ep_attr->protocol_version",
        ),
        (
            asked.max_msg_size,
            own.max_msg_size,
            "ep_attr->max_msg_size",
        ),
        (
            asked.max_order_raw_size,
            own.max_order_raw_size,
            "ep_attr->max_order_raw_size",
        ),
        (
            asked.max_order_war_size,
            own.max_order_war_size,
            "ep_attr->max_order_war_size",
        ),
        (
            asked.max_order_waw_size,
            own.max_order_waw_size,
            "ep_attr->max_order_waw_size",
        ),
        (asked.tx_ctx_cnt, own.tx_ctx_cnt, "ep_attr->tx_ctx_cnt"),
        (asked.rx_ctx_cnt, own.rx_ctx_cnt, "ep_attr->rx_ctx_cnt"),
        (asked.auth_key_size, 0, "ep_attr->auth_key_size"),
    ])?;
    if asked.mem_tag_format != 0 {
        own.mem_tag_format = asked.mem_tag_format;
    }
    Ok(())
}

fn fit_tx(own: &mut TxAttr, asked: &TxAttr) -> Result<()> {
    bits([
        (asked.caps, own.caps | DOMAIN_CAPS, "tx_attr->caps"),
        (asked.op_flags, TX_FLAGS, "tx_attr->op_flags"),
        (asked.msg_order, own.msg_order, "tx_attr->msg_order"),
        (asked.comp_order, own.comp_order, "tx_attr->comp_order"),
    ])?;
    limits([
        (asked.inject_size, own.inject_size, "tx_attr->inject_size"),
        (asked.size, own.size, "tx_attr->size"),
        (asked.iov_limit, own.iov_limit, "tx_attr->iov_limit"),
        (
            asked.rma_iov_limit,
            own.rma_iov_limit,
            "tx_attr->rma_iov_limit",
        ),
    ])?;
    own.op_flags = asked.op_flags;
    if asked.caps != 0 {
        own.caps &= asked.caps;
    }
    Ok(())
}

fn fit_rx(own: &mut RxAttr, asked: &RxAttr) -> Result<()> {
    bits([
        (asked.caps, own.caps | DOMAIN_CAPS, "rx_attr->caps"),
        (asked.op_flags, RX_FLAGS, "rx_attr->op_flags"),
        (asked.msg_order, own.msg_order, "rx_attr->msg_order"),
        (asked.comp_order, own.comp_order, "rx_attr->comp_order"),
    ])?;
    limits([
        (
            asked.total_buffered_recv,
            own.total_buffered_recv,
            "rx_attr->total_buffered_recv",
        ),
        (asked.size, own.size, "rx_attr->size"),
        (asked.iov_limit, own.iov_limit, "rx_attr->iov_limit"),
    ])?;
    own.op_flags = asked.op_flags;
    if asked.caps != 0 {
        own.caps &= asked.caps;
    }
    Ok(())
}

fn fit_domain(own: &mut DomainAttr, asked: &DomainAttr) -> Result<()> {
    bits([(asked.caps, own.caps, "domain_attr->caps")])?;
    limits([
        (
            asked.av_type as usize,
            sys::AV_TABLE as usize,
            "domain_attr->av_type",
        ),
        (
            asked.mr_key_size,
            own.mr_key_size,
            "domain_attr->mr_key_size",
        ),
        (
            asked.cq_data_size,
            own.cq_data_size,
            "domain_attr->cq_data_size",
        ),
        (asked.cq_cnt, own.cq_cnt, "domain_attr->cq_cnt"),
        (asked.ep_cnt, own.ep_cnt, "domain_attr->ep_cnt"),
        (asked.tx_ctx_cnt, own.tx_ctx_cnt, "domain_attr->tx_ctx_cnt"),
        (asked.rx_ctx_cnt, own.rx_ctx_cnt, "domain_attr->rx_ctx_cnt"),
        (
            asked.max_ep_tx_ctx,
            own.max_ep_tx_ctx,
            "domain_attr->max_ep_tx_ctx",
        ),
        (
            asked.max_ep_rx_ctx,
            own.max_ep_rx_ctx,
            "domain_attr->max_ep_rx_ctx",
        ),
        (
            asked.max_ep_stx_ctx,
            own.max_ep_stx_ctx,
            "domain_attr->max_ep_stx_ctx",
        ),
        (
            asked.max_ep_srx_ctx,
            own.max_ep_srx_ctx,
            "domain_attr->max_ep_srx_ctx",
        ),
        (asked.cntr_cnt, own.cntr_cnt, "domain_attr->cntr_cnt"),
        (
            asked.mr_iov_limit,
            own.mr_iov_limit,
            "domain_attr->mr_iov_limit",
        ),
        (asked.auth_key_size, 0, "domain_attr->auth_key_size"),
        (
            asked.max_err_data,
            own.max_err_data,
            "domain_attr->max_err_data",
        ),
        (asked.mr_cnt, own.mr_cnt, "domain_attr->mr_cnt"),
    ])?;
    echo_modes(own, asked);
    // Bits say what the caller would do for the provider, which asks for nothing. The two old words say how memory
    // is to be named, and it is.
    if [sys::MR_BASIC, sys::MR_SCALABLE].contains(&asked.mr_mode) {
        own.mr_mode = asked.mr_mode;
    }
    Ok(())
}

/// Takes what is asked for: the provider serves any of them.
fn echo_modes(own: &mut DomainAttr, asked: &DomainAttr) {
    for (own, asked, unspecified) in [
        (&mut own.threading, asked.threading, sys::THREAD_UNSPEC),
        (
            &mut own.control_progress,
            asked.control_progress,
            sys::PROGRESS_UNSPEC,
        ),
        (
            &mut own.data_progress,
            asked.data_progress,
            sys::PROGRESS_UNSPEC,
        ),
        (&mut own.resource_mgmt, asked.resource_mgmt, sys::RM_UNSPEC),
        (&mut own.av_type, asked.av_type, sys::AV_UNSPEC),
    ] {
        if asked != unspecified {
            *own = asked;
        }
    }
}
