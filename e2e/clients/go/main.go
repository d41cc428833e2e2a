// Command clients does with every kind of kruise-rs, in every version in which it is served, what Go programs do, through types
// that are generated from the definitions: create, read, update, patch, scale, watch, delete. A line says what was checked; it
// exits with 1 when a check fails, after the other kinds.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"kruise-rs.test/clients/apis"
)

func main() {
	path := flag.String("samples", "samples.yaml", "the objects")
	namespace := flag.String("namespace", "default", "where objects are made; others get it as a prefix")
	only := flag.String("kinds", "", "check these alone, with commas between them")
	gates := flag.String("gates", "", "the feature gates that are on, of those that the objects name")
	flag.Parse()
	if err := run(*path, *namespace, words(*only), words(*gates)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

func run(path, namespace string, only, gates []string) error {
	samples, err := readSamples(path, namespace)
	if err != nil {
		return err
	}
	c, err := connect(namespace)
	if err != nil {
		return err
	}
	byKind := map[string][]apis.Kind{}
	var order []string
	for _, kind := range apis.Kinds {
		if _, there := samples[kind.Kind]; !there {
			return fmt.Errorf("%s has no object of kind %s", path, kind.Kind)
		}
		if len(only) > 0 && !slices.Contains(only, kind.Kind) {
			continue
		}
		if byKind[kind.Kind] == nil {
			order = append(order, kind.Kind)
		}
		byKind[kind.Kind] = append(byKind[kind.Kind], kind)
	}
	for _, name := range only {
		if byKind[name] == nil {
			return fmt.Errorf("-kinds: %q is no kind of kruise-rs", name)
		}
	}

	// Most of a check is waiting for the manager.
	places := make(chan struct{}, 6)
	reports := make([]report, len(order))
	var all sync.WaitGroup
	for i, name := range order {
		all.Add(1)
		go func() {
			defer all.Done()
			places <- struct{}{}
			defer func() { <-places }()
			for _, kind := range byKind[name] {
				kind := checker{cluster: c, Kind: kind, sample: samples[name], served: byKind[name], report: &reports[i]}
				kind.isOn = kind.sample.Gate == "" || slices.Contains(gates, kind.sample.Gate)
				if err := kind.all(context.Background()); err != nil {
					reports[i].err = fmt.Errorf("%s %s: %w", name, kind.Version, err)
					return
				}
			}
		}()
	}
	all.Wait()

	var failed []string
	for _, one := range reports {
		for _, line := range one.lines {
			fmt.Println(line)
		}
		if one.err != nil {
			failed = append(failed, "FAILED "+one.err.Error())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s", strings.Join(failed, "\n"))
	}
	return nil
}

// report is what was checked of one kind.
type report struct {
	lines []string
	err   error
}

func text(object any) string {
	text, err := json.Marshal(object)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
