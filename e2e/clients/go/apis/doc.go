// Package apis has the table of all kinds of kruise-rs. The Go types are generated from the definitions.
package apis

//go:generate go run kruise-rs.test/clients/generate -root ../../../..
