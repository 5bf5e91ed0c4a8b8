//! Prints the counters of driver and NIC as one JSON line.

use anyhow::{Context, Result};
use qnic::Nic;

pub(crate) fn run() -> Result<()> {
    let opened = Nic::open().context("open the NIC")?;
    let info = opened.info().context("ask for counters")?;
    let datagrams = opened.datagram_info().context("ask for datagrams")?;
    let datagrams: std::collections::BTreeMap<_, _> = datagrams.fields().into();
    let nic: std::collections::BTreeMap<_, _> = info.nic.fields().into();
    let line = serde_json::json!({
        "abi_version": info.abi_version.get(),
        "node": info.node.get(),
        "windows": info.windows.get(),
        "sram_bytes": info.sram_bytes.get(),
        "pages_mapped": info.pages_mapped.get(),
        "pages_inserted": info.pages_inserted.get(),
        "pages_invalidated": info.pages_invalidated.get(),
        "pages_evicted": info.pages_evicted.get(),
        "faults_served": info.faults_served.get(),
        "faults_failed": info.faults_failed.get(),
        "lock_conflicts": info.lock_conflicts.get(),
        "wakes": info.wakes.get(),
        "datagrams": datagrams,
        "nic": nic,
    });
    println!("{line}");
    Ok(())
}
