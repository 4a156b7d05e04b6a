//! Reads the credential scope of a signed AWS request. It never verifies the signature: the AWS SDK is responsible for
//! signing correctly.

use ::http::{HeaderMap, header};

/// The credential scope of a signed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The access key ID.
    pub key: String,
    /// The region that the request is signed for.
    pub region: String,
    /// The service that the request is signed for, such as `ec2`.
    pub service: String,
}

impl Signature {
    /// Parses the `Authorization` header of a request.
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
