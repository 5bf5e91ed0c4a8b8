//! MAC addresses as people write them: `52:54:00:71:00:00` (X17).

use std::fmt;
use std::str::FromStr;

use crate::as_text::as_text;

/// The address of an Ethernet port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

/// A string is no MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a MAC address such as \"52:54:00:71:00:00\", found \"{0}\"")]
pub struct NotAMacAddress(pub String);

/// Programs of the host that one device process has on its Ethernet, at most.
pub const MAX_HOST_PORTS: u8 = 64;

/// The first bytes of their addresses: QEMU's prefix, and no node's.
const HOST: [u8; 5] = [0x52, 0x54, 0x00, 0x70, 0x00];

impl MacAddress {
    /// The address of the program of the host with this number.
    pub const fn of_host(number: u8) -> Self {
        let [a, b, c, d, e] = HOST;
        Self([a, b, c, d, e, number])
    }

    /// The number of the program of the host that has this address.
    pub fn host_number(self) -> Option<u8> {
        let [start @ .., number] = self.0;
        (start == HOST).then_some(number)
    }

    /// Returns true if it is the address of one port: not of a group of them, and not zero.
    pub const fn is_unicast(self) -> bool {
        let [a, b, c, d, e, f] = self.0;
        a & 1 == 0 && a | b | c | d | e | f != 0
    }

    /// Returns true if it is the address of a group of ports, or of all.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl FromStr for MacAddress {
    type Err = NotAMacAddress;

    fn from_str(text: &str) -> Result<Self, NotAMacAddress> {
        let mut bytes = text.split(':').map(|digits| {
            let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            plain.then(|| u8::from_str_radix(digits, 16).ok())?
        });
        let mut address = [0; 6];
        for byte in &mut address {
            *byte = (bytes.next().flatten()).ok_or_else(|| NotAMacAddress(text.to_owned()))?;
        }
        match bytes.next() {
            None => Ok(Self(address)),
            Some(_) => Err(NotAMacAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

as_text!(MacAddress);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    proptest! {
        #[test]
        fn addresses_print_what_they_parse_from(bytes: [u8; 6]) {
            let address = MacAddress(bytes);
            let text = address.to_string();
            prop_assert_eq!(text.parse(), Ok(address));
            prop_assert_eq!(text.to_uppercase().parse(), Ok(address));
            prop_assert_eq!(toml::from_str::<Table>(&format!("mac = \"{text}\"")), Ok(Table { mac: address }));
        }

        #[test]
        fn no_text_panics(text in "[0-9a-g:é-]{0,20}") {
            if let Ok(address) = text.parse::<MacAddress>() {
                prop_assert_eq!(address.to_string(), text);
            }
        }
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Table {
        mac: MacAddress,
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "52:54:00:71:00",
            "52:54:00:71:00:00:00",
            "52:54:00:71:00:0",
            "52:54:00:71:00:000",
            "52:54:00:71:00:+1",
            "52-54-00-71-00-00",
            "525400710000",
            "52:54:00:71:00:0g",
        ] {
            let error = NotAMacAddress(text.to_owned());
            assert_eq!(text.parse::<MacAddress>(), Err(error), "{text}");
        }
    }

    #[test]
    fn groups_and_zero_are_not_unicast() {
        for (bytes, expected) in [
            ([0x52, 0x54, 0, 0x71, 0, 0], true),
            ([0, 0, 0, 0, 0, 1], true),
            ([0; 6], false),
            ([0xff; 6], false),
            ([0x33, 0x33, 0, 0, 0, 1], false),
        ] {
            assert_eq!(MacAddress(bytes).is_unicast(), expected, "{bytes:?}");
        }
    }
}
