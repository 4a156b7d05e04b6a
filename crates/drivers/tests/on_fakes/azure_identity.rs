//! Tokens for Azure from each kind of identity, on a fake tenant.

use drivers::DriverError;
use drivers::azure::identity::{Identity, tokens};
use testbed::fake::Fake;
use testbed::fake::entra::Entra;

use crate::TOKEN;
use crate::support::service;

fn tenant() -> (Fake<Entra>, Identity) {
    let fake = Fake::new(Entra::new("tenant", "client", "secret", TOKEN));
    let identity = Identity {
        tenant: "tenant".into(),
        client: Some("client".into()),
        authority: Some("https://entra.invalid".into()),
        ..Identity::default()
    };
    (fake, identity)
}

async fn token(fake: &Fake<Entra>, identity: Identity) -> Result<String, DriverError> {
    tokens(identity, service(fake), "https://management.azure.com/").token().await
}

#[tokio::test]
async fn a_client_secret_is_exchanged_for_a_token_once() {
    let (fake, identity) = tenant();
    let identity = Identity { secret: Some("secret".into()), ..identity };
    let tokens = tokens(identity, service(&fake), "https://management.azure.com/");
    for _ in 0..2 {
        assert_eq!(tokens.token().await.unwrap(), TOKEN);
    }
    assert_eq!(fake.ledger().calls()["entra.token"], 1);
}

#[tokio::test]
async fn the_pods_token_is_exchanged_for_an_azure_token() {
    let (fake, identity) = tenant();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let identity = Identity { federated_token_file: Some(file.clone()), ..identity };
    let missing = token(&fake, identity.clone()).await.unwrap_err().to_string();
    assert!(missing.contains(&file.display().to_string()), "{missing}");
    std::fs::write(&file, "secret").unwrap();
    assert_eq!(token(&fake, identity).await.unwrap(), TOKEN);
}

#[tokio::test]
async fn without_either_the_managed_identity_is_used() {
    let (fake, identity) = tenant();
    assert_eq!(token(&fake, identity).await.unwrap(), TOKEN);
    assert_eq!(fake.ledger().calls()["managedIdentity.token"], 1);
    assert_eq!(token(&fake, Identity::default()).await.unwrap(), TOKEN);
}

#[tokio::test]
async fn a_token_error_has_azures_message_and_not_the_secret() {
    let (fake, identity) = tenant();
    let identity = Identity { secret: Some("not-the-right-one".into()), ..identity };
    let refused = token(&fake, identity).await.unwrap_err();
    assert!(matches!(refused, DriverError::Unavailable(_)));
    let refused = format!("{refused} {refused:?}");
    assert!(refused.contains("AADSTS7000215"), "{refused}");
    assert!(!refused.contains("not-the-right-one"), "{refused}");
}
