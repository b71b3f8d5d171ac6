package agentclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
)

// Rows returns all rows of a table, decoded into T.
func Rows[T any](ctx context.Context, c *Client, table string) ([]T, error) {
	op := "read table " + table
	tables, err := get[map[string][]T](ctx, c, op, "/statedb/dump/"+url.PathEscape(table))
	if err != nil {
		return nil, err
	}
	rows, found := tables[table]
	if !found {
		return nil, fmt.Errorf("%s: the answer of the agent at %s does not contain it", op, c.socket)
	}
	return rows, nil
}

// RawRows returns all rows of a table as JSON.
func (c *Client) RawRows(ctx context.Context, table string) ([]json.RawMessage, error) {
	return Rows[json.RawMessage](ctx, c, table)
}
