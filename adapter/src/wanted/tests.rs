use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::*;

/// Records of policy `qwen3` in namespace `serving`, with a lease renewed at `now`.
fn records(now: Instant) -> WantedReplicas {
    let role = |role: &str, wanted, per_set: &[(u32, u32)]| RoleRecord {
        role: role.to_owned(),
        wanted,
        per_set: per_set.to_vec(),
    };
    let qwen3 = Record(Some(vec![
        role("prefill", 3, &[(0, 2), (1, 1)]),
        role("decode", 5, &[(0, 3), (1, 2)]),
    ]));
    let key = |name: &str| ("serving".to_owned(), name.to_owned());
    let policies = BTreeMap::from([(key("qwen3"), qwen3), (key("fresh"), Record(None))]);
    let mut state = State {
        policies: Some(policies),
        ..State::default()
    };
    state
        .freshness
        .observe(Some(&lease(Timestamp::UNIX_EPOCH)), now);
    WantedReplicas {
        state: Arc::new(Mutex::new(state)),
        lease_namespace: "system".into(),
    }
}

fn lease(renewed: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some("scaler".into()),
        lease_duration_seconds: Some(15),
        renew_time: Some(MicroTime(renewed)),
        ..LeaseSpec::default()
    };
    Lease {
        spec: Some(spec),
        ..Lease::default()
    }
}

fn find(records: &WantedReplicas, selector: &str, now: Instant) -> Result<u32, Refusal> {
    let selector = selector.parse().expect("a selector");
    records
        .find("serving", &selector, now, Timestamp::UNIX_EPOCH)
        .map(|wanted| wanted.replicas)
}

#[test]
fn one_role_or_one_sets_share_of_it_is_picked() {
    let now = Instant::now();
    let records = records(now);
    assert_eq!(find(&records, "policy=qwen3,role=prefill", now), Ok(3));
    assert_eq!(find(&records, "policy=qwen3,role=decode,set=1", now), Ok(2));
    assert_eq!(find(&records, "role=decode", now), Ok(5));
}

#[test]
fn several_decisions_are_not_added_up() {
    let now = Instant::now();
    let records = records(now);
    for selector in ["policy=qwen3", "policy=qwen3,role=decode,set"] {
        let refusal = find(&records, selector, now).unwrap_err();
        assert_eq!(refusal.code(), 400, "{selector}");
    }
}

#[test]
fn what_was_not_decided_is_an_error_and_never_zero() {
    let now = Instant::now();
    let records = records(now);
    assert_eq!(
        find(&records, "policy=fresh,role=decode", now)
            .unwrap_err()
            .code(),
        503
    );
    assert_eq!(
        find(&records, "policy=none,role=decode", now)
            .unwrap_err()
            .code(),
        404
    );
    assert_eq!(
        find(&records, "policy=qwen3,role=decode,set=7", now)
            .unwrap_err()
            .code(),
        404
    );
    let elsewhere = records.find("other", &Selector::everything(), now, Timestamp::UNIX_EPOCH);
    assert_eq!(elsewhere.unwrap_err().code(), 404);
}

#[test]
fn a_record_of_a_dead_scaler_is_not_answered() {
    let now = Instant::now();
    let records = records(now);
    let later = now + Duration::from_secs(15);
    let refusal = find(&records, "policy=qwen3,role=prefill", later).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::unavailable(
            "the scaler is not alive: the lease was not renewed in time (Lease system/coppice-scaler)"
        )
    );
    let renewed = lease(Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(2));
    records
        .state
        .lock()
        .freshness
        .observe(Some(&renewed), later);
    assert_eq!(find(&records, "policy=qwen3,role=prefill", later), Ok(3));
    records.state.lock().freshness.observe(None, later);
    assert_eq!(
        find(&records, "policy=qwen3,role=prefill", later)
            .unwrap_err()
            .code(),
        503
    );
}

#[test]
fn before_the_first_list_nothing_is_known() {
    let unknown = WantedReplicas {
        state: Arc::default(),
        lease_namespace: "system".into(),
    };
    assert_eq!(
        find(&unknown, "policy=qwen3,role=prefill", Instant::now())
            .unwrap_err()
            .code(),
        503
    );
}
