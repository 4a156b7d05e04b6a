//! Whom a request to Amazon claims to come from. Signatures are not checked: that is the SDK's and its authors' business.

use ::http::{HeaderMap, header};

/// Who signed, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The access key's id.
    pub key: String,
    /// The region.
    pub region: String,
    /// The service, such as `ec2`.
    pub service: String,
}

impl Signature {
    /// What the headers of a request say.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let signed = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let scope = signed.split("Credential=").nth(1)?.split(',').next()?;
        match scope.trim().split('/').collect::<Vec<_>>().as_slice() {
            [key, _, region, service, "aws4_request"] => {
                let [key, region, service] = [key, region, service].map(|part| (*part).to_owned());
                Some(Self { key, region, service })
            }
            _ => None,
        }
    }
}
