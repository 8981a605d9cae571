use super::*;

fn rows(text: &str) -> Vec<Row> {
    parse("test", text.as_bytes().to_vec(), None).unwrap().rows
}

fn milliseconds(rows: &[Row]) -> Vec<u128> {
    rows.iter().map(|row| row.at.as_millis()).collect()
}

#[test]
fn our_own_form_is_read_by_column_name() {
    let rows = rows("output_tokens,arrival_s,input_tokens\n5,10.5,100\n6,10.25,200\n");
    assert_eq!(milliseconds(&rows), [0, 250]);
    assert_eq!((rows[0].input_tokens, rows[0].output_tokens), (200, 6));
}

#[test]
fn prefix_hits_become_a_shared_beginning_no_longer_than_the_prompt() {
    let rows = rows(
        "arrival_s,input_tokens,output_tokens,prefix_hit_tokens\n0,100,5,0\n1,100,5,64\n2,100,5,512\n",
    );
    assert_eq!(rows[0].prefix, Prefix::None);
    assert_eq!(
        rows[1].prefix,
        Prefix::Shared {
            group: 0,
            tokens: 64
        }
    );
    assert_eq!(
        rows[2].prefix,
        Prefix::Shared {
            group: 0,
            tokens: 100
        }
    );
}

#[test]
fn azure_stamps_of_both_years_are_read_with_and_without_fraction() {
    let rows_2023 = rows(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n2023-11-16 18:15:51,879,55\r\n",
    );
    assert_eq!(milliseconds(&rows_2023), [0, 4314, 4319]);
    let rows_2024 = rows(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00+00:00,2399,6\n2024-05-10 00:00:01.5+00:00,1,0\n",
    );
    assert_eq!(milliseconds(&rows_2024), [0, 9, 1500]);
    assert_eq!(rows_2024[0].input_tokens, 2399);
    assert_eq!(
        rows_2024[2].output_tokens, 1,
        "a request generates at least one token"
    );
}

#[test]
fn mooncake_lines_keep_their_block_hashes() {
    let rows = rows(concat!(
        r#"{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}"#,
        "\n",
        r#"{"timestamp": 3000, "input_length": 10, "output_length": 4, "hash_ids": []}"#
    ));
    assert_eq!(milliseconds(&rows), [0, 3000]);
    assert_eq!(rows[0].prefix, Prefix::Blocks(Box::new([0, 1, 2])));
    assert_eq!(rows[1].prefix, Prefix::None);
}

#[test]
fn burst_gpt_is_read_with_and_without_sessions_and_failures_are_counted() {
    let plain = parse(
        "test",
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,0,1087,API log\n118.0,ChatGPT,417,276,693,Conversation log\n".to_vec(),
        None,
    )
    .unwrap();
    assert_eq!(milliseconds(&plain.rows), [0, 113_000]);
    assert_eq!(plain.failed, 1);
    let sessions = rows(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,42,0.5,GPT-4,10,5,15,Conversation log\n2,42,0.5,GPT-4,10,5,15,Conversation log\n3,,0.5,GPT-4,10,5,15,API log\n",
    );
    assert_ne!(sessions[0].client, 0);
    assert_eq!(sessions[0].client, sessions[1].client);
    assert_eq!(sessions[2].client, 0);
}

#[test]
fn built_in_traces_have_the_published_counts_and_means() {
    for (name, count, input, output) in [
        ("azure-2023-conv", 19_366, 1155.0, 211.0),
        ("mooncake-conversation", 12_031, 12_035.0, 343.0),
    ] {
        let trace = read(Path::new(name), None).unwrap();
        assert_eq!(trace.rows.len(), count);
        let mean = |key: fn(&Row) -> u32| {
            trace
                .rows
                .iter()
                .map(|row| f64::from(key(row)))
                .sum::<f64>()
                / count as f64
        };
        assert!((mean(|row| row.input_tokens) - input).abs() < 1.0);
        assert!((mean(|row| row.output_tokens) - output).abs() < 1.0);
    }
    assert_eq!(builtin_names().count(), 2);
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let error = |text: &str| {
        parse("t.csv", text.as_bytes().to_vec(), None)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("arrival_s,input_tokens,output_tokens\n0,1,1\n1,many,1\n"),
        "the trace t.csv, line 3: input_tokens is \"many\", not a number of tokens"
    );
    assert!(
        error("arrival_s,input_tokens\n0,1\n")
            .contains("line 1: the column output_tokens is missing")
    );
    assert!(
        error("arrival_s,input_tokens,output_tokens\n0,1\n")
            .contains("it ends before output_tokens")
    );
    assert!(
        error("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n")
            .contains("TIMESTAMP is \"yesterday\"")
    );
    assert!(error("a,b,c\n1,2,3\n").contains("none of the known formats"));
    assert!(error("").contains("holds no requests"));
    let unknown = read(Path::new("azure-2099"), None).unwrap_err().to_string();
    assert!(
        unknown.contains("built-in traces azure-2023-conv, mooncake-conversation"),
        "{unknown}"
    );
}

#[test]
fn seconds_are_not_rounded() {
    assert_eq!(csv::seconds("12.000000001", "t").unwrap(), 12_000_000_001);
    assert_eq!(csv::seconds("1e3", "t").unwrap(), 1_000_000_000_000);
    assert!(csv::seconds("-1", "t").is_err());
}
