// Runs health checks in Lua as Argo CD runs them: the same interpreter, with the same libraries, over objects of Kubernetes.
//
// Standard input is a JSON array of cases, {"script": text, "object": {…}}; without a script, Argo CD's own of the object's
// kind is run. Standard output is an array of what they return, {"status", "message"}, or {"error"}, in the same order.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/argoproj/argo-cd/v3/resource_customizations"
	lua "github.com/yuin/gopher-lua"
)

type check struct {
	Script string         `json:"script"`
	Object map[string]any `json:"object"`
}

type verdict struct {
	Status  string `json:"status,omitempty"`
	Message string `json:"message,omitempty"`
	Error   string `json:"error,omitempty"`
}

func main() {
	var cases []check
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		fmt.Fprintln(os.Stderr, "standard input:", err)
		os.Exit(1)
	}
	verdicts := make([]verdict, 0, len(cases))
	for _, c := range cases {
		v, err := run(c)
		if err != nil {
			v.Error = err.Error()
		}
		verdicts = append(verdicts, v)
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(c check) (verdict, error) {
	script, all := c.Script, false
	if script == "" {
		group, _, _ := strings.Cut(fmt.Sprint(c.Object["apiVersion"]), "/")
		text, err := resource_customizations.Embedded.ReadFile(fmt.Sprintf("%s/%s/health.lua", group, c.Object["kind"]))
		if err != nil {
			return verdict{}, fmt.Errorf("Argo CD has no health check of its own: %w", err)
		}
		// only what comes with Argo CD may use all libraries
		script, all = string(text), true
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: !all})
	defer state.Close()
	if !all {
		for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
			if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
				return verdict{}, err
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", value(state, c.Object))
	if err := state.DoString(script); err != nil {
		return verdict{}, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return verdict{}, fmt.Errorf("the script returns %s, not a table", state.Get(-1).Type())
	}
	return verdict{Status: text(table, "status"), Message: text(table, "message")}, nil
}

func text(table *lua.LTable, field string) string {
	if value, ok := table.RawGetString(field).(lua.LString); ok {
		return string(value)
	}
	return ""
}

func value(state *lua.LState, of any) lua.LValue {
	switch of := of.(type) {
	case bool:
		return lua.LBool(of)
	case float64:
		return lua.LNumber(of)
	case string:
		return lua.LString(of)
	case []any:
		list := state.CreateTable(len(of), 0)
		for _, item := range of {
			list.Append(value(state, item))
		}
		return list
	case map[string]any:
		table := state.CreateTable(0, len(of))
		for key, item := range of {
			table.RawSetString(key, value(state, item))
		}
		return table
	}
	return lua.LNil
}
