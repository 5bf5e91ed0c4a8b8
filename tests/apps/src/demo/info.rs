//! Prints what driver and NIC are and have counted, as one JSON line: whatever they count.

use anyhow::{Context, Result};
use qnic::{CounterSource, Nic};
use serde_json::{json, Map, Value};

pub(crate) fn run() -> Result<()> {
    let nic = Nic::open().context("open the NIC")?;
    let info = nic.info().context("ask what it is")?;
    let counters = |source| -> Result<Map<String, Value>> {
        let counters = nic.counters(source).context("ask for counters")?;
        Ok(counters
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect())
    };
    let mut line = counters(CounterSource::Driver)?;
    for (name, value) in [
        ("abi_version", json!(info.abi_version.get())),
        ("node", json!(info.node.get())),
        ("windows", json!(info.windows.get())),
        ("sram_bytes", json!(info.sram_bytes.get())),
        ("datagrams", counters(CounterSource::Datagrams)?.into()),
        ("nic", counters(CounterSource::Nic)?.into()),
    ] {
        line.insert(name.to_owned(), value);
    }
    println!("{}", Value::from(line));
    Ok(())
}
