raise SystemExit('this file was run')
